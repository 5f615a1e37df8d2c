"""`rose convert`: nothing lost between layouts, everything accounted for, and never half a checkpoint."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from rose.errors import CheckpointError, ConfigError
from rose.numerics import fp8
from rose.weights import reading
from rose.weights.checkpoint import Checkpoint
from rose.weights.convert import convert
from rose.weights.finite import FiniteCheck
from rose.weights.loader import load_model
from rose.weights.shard_writer import ShardWriter
from tests.checkpoints import (
    TinyShape,
    expand_experts,
    random_weights,
    to_original_layout,
    write_checkpoint,
)
from tests.models.running import run_in_chunks

SHAPE = TinyShape(num_layers=3)
LAYOUTS = ["hugging_face", "hugging_face_floats", "original"]
FORMATS = [("mxfp4", "bf16"), ("fp8", "bf16"), ("fp8-block", "fp8"), ("bf16", "fp8-block"), ("auto", "auto")]
IDS = list(range(30))


def load(folder, **formats):
    return load_model(folder, device="cpu", dtype=torch.float32, **formats)


def logits(folder, **formats):
    return run_in_chunks(load(folder, **formats), IDS, [30])


def run(source, folder, **options):
    return convert(Checkpoint(source), folder, **options)


def tensors_of(folder):
    tensors = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    return tensors


def assert_same_bits(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert tensor.shape == theirs[name].shape, name
        assert torch.equal(tensor.view(torch.uint8), theirs[name].contiguous().view(torch.uint8)), name


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    root = tmp_path_factory.mktemp("sources")
    return {layout: write_checkpoint(root / layout, SHAPE, layout=layout) for layout in LAYOUTS}


@pytest.mark.parametrize(("experts", "dense"), FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ahead_of_time_is_the_same_as_at_load(layout, experts, dense, sources, tmp_path):
    run(sources[layout], tmp_path / "out", experts=experts, dense=dense)
    at_load = {"experts": experts, "dense": dense}
    assert torch.equal(logits(tmp_path / "out"), logits(sources[layout], **at_load))


def test_mxfp4_in_fp8_has_the_same_values(sources, tmp_path):
    for experts in ("fp8", "fp8-block"):
        manifest = run(sources["hugging_face"], tmp_path / experts, experts=experts)
        assert manifest["inexact_blocks"] == 0 < manifest["exact_blocks"]
        expected = logits(sources["hugging_face"], experts="bf16")
        assert torch.equal(logits(tmp_path / experts, experts="bf16"), expected)


def test_round_trip_through_every_layout_keeps_every_bit(sources, tmp_path):
    """Published → rose → original → Hugging Face: the files of the beginning."""
    run(sources["hugging_face"], tmp_path / "rose")
    run(tmp_path / "rose", tmp_path / "original", layout="original")
    assert_same_bits(tensors_of(tmp_path / "original"), to_original_layout(random_weights(SHAPE), SHAPE))
    run(tmp_path / "original", tmp_path / "back", layout="hf")
    assert_same_bits(tensors_of(tmp_path / "back"), tensors_of(sources["hugging_face"]))


def test_original_layout_back_to_itself(sources, tmp_path):
    run(sources["original"], tmp_path / "hf", layout="hf")
    run(tmp_path / "hf", tmp_path / "back", layout="original")
    assert_same_bits(tensors_of(tmp_path / "back"), tensors_of(sources["original"]))
    ours, theirs = (
        json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "back", sources["original"])
    )
    assert ours == theirs


def test_fp8_back_to_mxfp4_has_the_same_values(sources, tmp_path):
    run(sources["hugging_face"], tmp_path / "fp8", experts="fp8")
    run(tmp_path / "fp8", tmp_path / "hf", experts="mxfp4", layout="hf")
    assert_same_bits(expand_experts(tensors_of(tmp_path / "hf")), expand_experts(tensors_of(sources["hugging_face"])))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("experts", ["bf16", "mxfp4"])
def test_transformers_loads_the_hugging_face_layout(layout, experts, sources, tmp_path):
    from transformers import GptOssForCausalLM, Mxfp4Config

    run(sources[layout], tmp_path / "out", layout="hf", experts=experts)
    options = {"quantization_config": Mxfp4Config(dequantize=True)} if experts == "mxfp4" else {}
    model = GptOssForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32, attn_implementation="eager", experts_implementation="eager", **options
    ).float()
    with torch.no_grad():
        theirs = model.eval()(torch.tensor([IDS])).logits[0]
    assert (theirs - logits(sources[layout])).abs().max() < 1e-4


def test_every_tensor_is_accounted_for(sources, tmp_path):
    manifest = run(sources["hugging_face"], tmp_path / "out", experts="fp8", dense="fp8")
    assert manifest == json.loads((tmp_path / "out" / "manifest.json").read_text())
    read = [name for account in manifest["ledger"] for name in account["sources"]]
    assert sorted(read) == sorted(tensors_of(sources["hugging_face"]))
    digests = {name: digest for account in manifest["ledger"] for name, digest in account["targets"].items()}
    written = tensors_of(tmp_path / "out")
    assert digests.keys() == written.keys()
    for name, tensor in written.items():
        data = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        assert digests[name] == hashlib.sha256(data).hexdigest(), name
    losses = {account["transform"]: account["loss"] for account in manifest["ledger"]}
    assert losses["copy"] is None
    assert losses["mxfp4 → fp8"]["inexact_blocks"] == 0
    assert 0.01 < losses["bf16 → fp8"]["rms_relative_error"] < 0.04
    again = run(sources["hugging_face"], tmp_path / "again", layout="original")
    assert again["source"]["sha256"] == manifest["source"]["sha256"]


def test_several_files_have_an_index(sources, tmp_path):
    run(sources["original"], tmp_path / "out", max_shard_bytes=40_000)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = sorted(file.name for file in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 2
    assert sorted(set(index["weight_map"].values())) == files
    assert torch.equal(logits(tmp_path / "out"), logits(sources["original"]))


def test_other_files_come_along(sources, tmp_path):
    (tmp_path / "other").mkdir()
    for name in ("tokenizer.json", "generation_config.json", "chat_template.jinja", "config.json", "notes.txt"):
        (tmp_path / "other" / name).write_text(name)
    run(sources["original"], tmp_path / "out", other_files=tmp_path / "other")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "tokenizer.json"
    assert (tmp_path / "out" / "chat_template.jinja").exists()
    assert not (tmp_path / "out" / "notes.txt").exists()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "gpt_oss"


def test_float32_weights_that_become_bfloat16_are_in_the_ledger(sources, tmp_path):
    tensors = tensors_of(sources["hugging_face"])
    tensors["model.norm.weight"] = tensors["model.norm.weight"].float() + 1e-5
    folder = write_checkpoint(tmp_path / "source", SHAPE)
    save_file(tensors, folder / "model.safetensors")
    ledger = run(folder, tmp_path / "out")["ledger"]
    lossy = [account for account in ledger if account["loss"] is not None]
    assert [list(account["sources"]) for account in lossy] == [["model.norm.weight"]]
    assert lossy[0]["loss"]["inexact_blocks"] == 64


class Stop(Exception):
    pass


def stop_after(share):
    def progress(done, total):
        if done >= share * total:
            raise Stop

    return progress


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8, 1.0])
def test_an_interrupted_conversion_cannot_be_loaded_and_goes_on(share, sources, tmp_path):
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    options = {"experts": "fp8", "max_shard_bytes": 100_000, "commit_bytes": 1}
    with pytest.raises(Stop):
        run(sources["hugging_face"], out, progress=stop_after(share), **options)
    assert not out.exists()
    with pytest.raises(CheckpointError, match=r"config.json is missing"):
        load(partial)
    with (partial / "journal.jsonl").open("a") as journal:
        journal.write('{"3": {"transf')  # the power went off here
    reports = []
    run(sources["hugging_face"], out, progress=lambda done, total: reports.append(done / total), **options)
    assert reports[0] >= share - 0.2
    assert not partial.exists()
    run(sources["hugging_face"], tmp_path / "whole", experts="fp8", max_shard_bytes=100_000)
    for file in (tmp_path / "whole").iterdir():
        assert file.read_bytes() == (out / file.name).read_bytes(), file.name
    assert len(list(out.iterdir())) == len(list((tmp_path / "whole").iterdir()))


def test_an_unfinished_conversion_of_something_else_is_left_alone(sources, tmp_path):
    with pytest.raises(Stop):
        run(sources["hugging_face"], tmp_path / "out", progress=stop_after(0.5))
    with pytest.raises(ConfigError, match="unfinished conversion of something else"):
        run(sources["hugging_face"], tmp_path / "out", experts="fp8")
    with pytest.raises(ConfigError, match="unfinished conversion of something else"):
        run(sources["original"], tmp_path / "out")


def test_two_at_once(sources, tmp_path):
    partial = tmp_path / "out.partial"
    partial.mkdir()
    descriptor = os.open(partial / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(ConfigError, match="another conversion is writing"):
        run(sources["original"], tmp_path / "out")
    os.close(descriptor)


def test_the_folder_must_not_be_there(sources, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        run(sources["original"], tmp_path / "out")


def test_a_full_disk_is_told_before(sources, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(ConfigError, match=r"needs 0.3 MB, its disk has 0.0 MB free"):
        run(sources["original"], tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_leaves_what_can_be_gone_on_with(sources, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", refuse)
        with pytest.raises(ConfigError, match=r"cannot write .*out\.partial: .*No space left"):
            run(sources["original"], tmp_path / "out")
    run(sources["original"], tmp_path / "out")


@pytest.mark.parametrize("name", ["link", "x" * 300, "file/out"])
def test_a_folder_that_cannot_be(name, sources, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(ConfigError, match=r"exists already|cannot write"):
        run(sources["original"], tmp_path / name)
    assert {file.name for file in tmp_path.iterdir()} == {"file", "link"}


def test_files_of_somebody_else_are_left_alone(sources, tmp_path):
    partial = tmp_path / "out.partial"
    partial.mkdir()
    (partial / "model.safetensors").write_text("mine")
    with pytest.raises(ConfigError, match="is no unfinished conversion"):
        run(sources["original"], tmp_path / "out")
    assert [file.name for file in partial.iterdir()] == ["model.safetensors"]
    assert (partial / "model.safetensors").read_text() == "mine"


def interrupt(source, out, share=0.5):
    options = {"layout": "original", "max_shard_bytes": 100_000, "commit_bytes": 1}
    with pytest.raises(Stop):
        run(source, out, progress=stop_after(share), **options)
    return options, out.with_name(f"{out.name}.partial") / "journal.jsonl"


def test_a_journal_cut_anywhere_is_gone_on_from(sources, tmp_path):
    """Also between rules that fill parts of one tensor: query, key and value are one in the original layout."""
    options, journal = interrupt(sources["hugging_face"], tmp_path / "out")
    partial, whole = journal.parent, tmp_path / "whole"
    run(sources["hugging_face"], whole, **options)
    complete = journal.read_bytes()
    ends = [index + 1 for index, byte in enumerate(complete) if byte == ord("\n")]
    shutil.copytree(partial, tmp_path / "kept")
    for cut in ends:
        for tail in (b"", b"\xff\xfe", b"[]\n", b'{"rule": 3}\n', b'{"0": {}}\n'):
            journal.write_bytes(complete[:cut] + tail)
            run(sources["hugging_face"], tmp_path / "out", **options)
            assert tensor_bytes(tmp_path / "out") == tensor_bytes(whole)
            shutil.rmtree(tmp_path / "out")
            shutil.copytree(tmp_path / "kept", partial)


def tensor_bytes(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("text", [None, "", "\n", "{\n", "\xff\n"])
def test_an_unfinished_conversion_without_its_journal_is_refused(text, sources, tmp_path):
    _, journal = interrupt(sources["hugging_face"], tmp_path / "out")
    journal.unlink()
    if text is not None:
        journal.write_text(text)
    with pytest.raises(ConfigError, match="no journal that can be read"):
        run(sources["hugging_face"], tmp_path / "out", layout="hf")


@pytest.mark.parametrize("when", ["write_index", "write_durably", "Path.rename", "Path.unlink"])
def test_interrupted_at_the_very_end(when, sources, tmp_path, monkeypatch):
    def stop(*_):
        raise Stop

    target = "pathlib." if "." in when else "rose.weights.partial_folder."
    with monkeypatch.context() as patch:
        patch.setattr(target + when, stop)
        with pytest.raises(Stop):
            run(sources["hugging_face"], tmp_path / "out")
    if when == "Path.unlink":
        load(tmp_path / "out")
        return
    reports = []
    run(sources["hugging_face"], tmp_path / "out", progress=lambda done, total: reports.append(done / total))
    assert reports == [1.0]
    load(tmp_path / "out")
    assert not (tmp_path / "out" / "journal.jsonl").exists()


def test_progress_is_what_is_written(sources, tmp_path, monkeypatch):
    written = [0]
    write = ShardWriter.write

    def write_slowly(writer, name, row, rows):
        time.sleep(0.001)
        write(writer, name, row, rows)
        written[0] += rows.nbytes

    def progress(done, total):
        assert done <= written[0]  # formats stay, so a byte read is a byte written
        reports.append(done / total)

    reports = []
    monkeypatch.setattr(ShardWriter, "write", write_slowly)
    run(sources["hugging_face"], tmp_path / "out", layout="hf", progress=progress)
    assert reports == sorted(reports)
    assert (reports[0], reports[-1]) == (0.0, 1.0)


def test_a_source_that_changes_on_the_way(tmp_path):
    source = write_checkpoint(tmp_path / "source", SHAPE)

    def change(done, total):
        os.utime(source / "model.safetensors")

    with pytest.raises(CheckpointError, match="changed while it was read"):
        run(source, tmp_path / "out", progress=change)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"layout": "original", "experts": "fp8"},
            "original layout has experts in mxfp4.*: give --experts mxfp4 --dense bf16",
        ),
        (
            {"layout": "hf", "dense": "fp8"},
            "hf layout has experts in mxfp4 or bf16.*: give --experts mxfp4 .or bf16. --dense bf16",
        ),
        ({"layout": "gguf"}, "layout must be one of hf, original, rose, not 'gguf'"),
        ({"experts": "int4"}, "experts must be one of auto, bf16, mxfp4, fp8, fp8-block, not 'int4'"),
        ({"dense": "mxfp4"}, "MXFP4 is for experts"),
    ],
)
def test_what_cannot_be(options, message, sources, tmp_path):
    with pytest.raises(ConfigError, match=message):
        run(sources["hugging_face"], tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (TinyShape(tie_word_embeddings=True), "a table for the unembedding"),
        (TinyShape(truncate=True), "YaRN without truncation"),
    ],
)
def test_shapes_that_the_original_form_cannot_describe(shape, message, tmp_path):
    source = write_checkpoint(tmp_path / "source", shape)
    with pytest.raises(ConfigError, match=message):
        run(source, tmp_path / "out", layout="original")
    run(source, tmp_path / "rose")
    assert torch.equal(logits(tmp_path / "rose"), logits(source))


def test_nan_scales_stop_a_conversion(tmp_path):
    source = write_checkpoint(tmp_path / "source", SHAPE)
    tensors = tensors_of(source)
    tensors["model.layers.1.mlp.experts.down_proj_scales"][3, 2, 1] = 255
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"down_proj_scales in .*NaN \(255\), the first at \[3, 2, 1\]"):
        run(source, tmp_path / "out", experts="fp8")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("commit_bytes", [1, 1 << 30])
def test_nan_stops_a_conversion_on_a_gpu_each_time(commit_bytes, tmp_path, monkeypatch):
    """There floats are asked about at a stream's end; what was bad must not be in the journal as done by then."""
    finding = []
    find = reading.ParallelReader._find_position
    monkeypatch.setattr(reading, "FiniteCheck", lambda known, at_once: FiniteCheck(known, at_once=bool(finding)))
    monkeypatch.setattr(
        reading.ParallelReader, "_find_position", lambda self, part: (finding.append(part), find(self, part))
    )
    source = write_checkpoint(tmp_path / "source", SHAPE)
    tensors = tensors_of(source)
    tensors["model.layers.1.mlp.router.bias"][2] = torch.nan
    save_file(tensors, source / "model.safetensors")
    for _ in range(2):
        finding.clear()
        with pytest.raises(CheckpointError, match=r"model.safetensors: .*router.bias holds nan at \[2\]"):
            run(source, tmp_path / "out", commit_bytes=commit_bytes)
    assert not (tmp_path / "out").exists()


def test_impossible_fp8_is_found_at_load(sources, tmp_path):
    run(sources["hugging_face"], tmp_path / "out", experts="fp8")
    tensors = tensors_of(tmp_path / "out")
    (tmp_path / "out" / "manifest.json").unlink()

    def write_with(name, index, value):
        changed = {key: tensor.clone() for key, tensor in tensors.items()}
        changed[name].view(torch.uint8 if changed[name].dtype == fp8.E4M3 else torch.float32)[index] = value
        save_file(changed, tmp_path / "out" / "model.safetensors")

    write_with("blocks.1.mlp.down.row_scales", (2, 5), float("nan"))
    with pytest.raises(CheckpointError, match=r"model.safetensors: .*down.row_scales holds nan at \[2, 5\]"):
        load(tmp_path / "out")
    for value in (0.0, 3.0):
        write_with("blocks.1.mlp.down.row_scales", (2, 5), value)
        with pytest.raises(CheckpointError, match=r"down.row_scales in .*model.safetensors: 1 FP8 scale.*\[2, 5\]"):
            load(tmp_path / "out")
    write_with("blocks.1.mlp.down.weight", (2, 5, 0), 0x7F)
    with pytest.raises(CheckpointError, match=r"down.weight in .*FP8 values hold NaN"):
        load(tmp_path / "out")
