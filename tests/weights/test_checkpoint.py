"""Files that are missing, damaged or contradict each other: each a CheckpointError that says where to look."""

import errno
import json
import os
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rose.errors import CheckpointError
from rose.weights import loader
from rose.weights.checkpoint import Checkpoint
from rose.weights.loader import load_model
from rose.weights.resolve import resolve_checkpoint
from tests.checkpoints import write_checkpoint

INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def single(tmp_path):
    return write_checkpoint(tmp_path / "single")


@pytest.fixture
def sharded(tmp_path):
    return write_checkpoint(tmp_path / "sharded", num_files=2)


def change_index(folder, change):
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def assert_refused(folder, *fragments):
    with pytest.raises(CheckpointError) as caught:
        load_model(folder, device="cpu", dtype=torch.float32)
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_headers_tell_everything(single, sharded):
    one, two = Checkpoint(single), Checkpoint(sharded)
    facts = [{n: (t.dtype, t.shape, t.num_bytes) for n, t in c.tensors.items()} for c in (one, two)]
    assert facts[0] == facts[1]
    assert facts[0]["model.layers.0.mlp.experts.down_proj_blocks"] == ("U8", (7, 64, 3, 16), 21504)
    assert facts[0]["model.norm.weight"] == ("BF16", (64,), 128)
    assert one.num_bytes == sum(t.numel() * t.itemsize for t in load_file(single / "model.safetensors").values())
    assert torch.equal(one.read("model.norm.weight"), two.read("model.norm.weight"))


def test_several_files_without_an_index(sharded):
    (sharded / INDEX).unlink()
    load_model(sharded, device="cpu", dtype=torch.float32)


def test_no_weights(single):
    (single / "model.safetensors").unlink()
    assert_refused(single, "has no *.safetensors file")


def test_no_config(single):
    (single / "config.json").unlink()
    assert_refused(single, "config.json is missing")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not readable JSON"),
        ("[1]", "must hold a JSON object, not list"),
        ("\xff", "JSON"),
        ('{"a":' * 100_000, "not readable JSON"),
    ],
)
def test_broken_config(single, text, message):
    (single / "config.json").write_bytes(text.encode("latin-1"))
    assert_refused(single, "config.json", message)


@pytest.mark.parametrize("header", [b'{"a":' * 100_000, b"[]", b"\0\0\0{\0\0\0}", '{"é": 1}'.encode("utf-16")])
def test_header_that_is_no_utf8_json_object(single, header):
    path = single / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    assert_refused(single, str(path), "not a sound safetensors file")


@pytest.mark.parametrize("keep", [0, 4, 100, 20_000])
def test_truncated_file(single, keep):
    path = single / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert_refused(single, str(path), "not a sound safetensors file")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "it is empty"),
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:" + 64 * "0" + "\nsize 13761264768\n",
            "it is a Git LFS pointer, not the file: run `git lfs pull`",
        ),
    ],
)
def test_a_file_whose_content_did_not_come_along(sharded, content, message):
    (sharded / SECOND).write_text(content)
    assert_refused(sharded, SECOND, message)


def test_garbage_in_place_of_a_header(single):
    path = single / "model.safetensors"
    path.write_bytes(b"\xff" * 4096)
    assert_refused(single, str(path), "not a sound safetensors file")


def test_missing_shard(sharded):
    (sharded / SECOND).unlink()
    assert_refused(sharded, INDEX, SECOND, "missing")


def test_index_puts_a_tensor_into_the_wrong_file(sharded):
    def swap(weight_map):
        weight_map["model.norm.weight"] = {FIRST: SECOND, SECOND: FIRST}[weight_map["model.norm.weight"]]

    change_index(sharded, swap)
    assert_refused(sharded, INDEX, "model.norm.weight", "does not hold it")


def test_index_names_a_tensor_that_no_file_holds(sharded):
    change_index(sharded, lambda weight_map: weight_map.update({"model.extra": FIRST}))
    assert_refused(sharded, INDEX, "model.extra")


def test_index_forgets_a_tensor(sharded):
    change_index(sharded, lambda weight_map: weight_map.pop("model.norm.weight"))
    assert_refused(sharded, "model.norm.weight", "does not name")


@pytest.mark.parametrize("text", ["{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "nonsense"])
def test_broken_index(sharded, text):
    (sharded / INDEX).write_text(text)
    assert_refused(sharded, INDEX)


@pytest.mark.parametrize(
    ("name", "message"),
    [("x" * 300, "File name too long"), ("", "which is missing"), ("a\0b", "which is missing"), ("..", "is missing")],
)
def test_index_names_what_cannot_be_a_file(sharded, name, message):
    change_index(sharded, lambda weight_map: weight_map.update({"model.norm.weight": name}))
    assert_refused(sharded, f"{INDEX} names", message)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_what_is_no_file_is_not_waited_for(single, name):
    """Opening a pipe that nobody writes to would take for ever."""
    (single / name).unlink()
    os.mkfifo(single / name)
    assert_refused(single, str(single / name), "it is no file")


def test_a_long_header_makes_no_long_message(single):
    entry = {"dtype": ["F32"] * 100_000, "shape": [1], "data_offsets": [0, 4]}
    text = json.dumps({"a": entry}).encode()
    (single / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(CheckpointError, match=r"model.safetensors is not .*: a is described by .*…$") as caught:
        Checkpoint(single)
    assert len(str(caught.value)) < 500 + len(str(single))


def test_a_name_that_comes_twice_among_many(single):
    """Found in one pass: to count each name would take hours."""
    entry = '{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    text = "{" + ",".join(f'"{name}":{entry}' for name in [*range(100_000), "b", "b"]) + "}"
    (single / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text.encode())
    assert_refused(single, "model.safetensors", "its header names b twice")


def test_tensor_in_two_files(sharded):
    (sharded / INDEX).unlink()
    tensors = load_file(sharded / FIRST)
    name = next(iter(load_file(sharded / SECOND)))
    save_file(tensors | {name: torch.zeros(1)}, sharded / FIRST)
    assert_refused(sharded, name, FIRST, SECOND)


def test_other_files_beside_an_index_are_left_alone(sharded):
    save_file({"model.norm.weight": torch.zeros(1)}, sharded / "consolidated.safetensors")
    load_model(sharded, device="cpu", dtype=torch.float32)


def test_file_that_goes_away_before_it_is_read(single):
    checkpoint = Checkpoint(single)
    (single / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"cannot read model.norm.weight"):
        checkpoint.read("model.norm.weight")


def replace(path):
    other = path.with_suffix(".new")
    other.write_bytes(bytes(path.stat().st_size))
    other.replace(path)


def overwrite(path):
    length = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, length)


@pytest.mark.parametrize("change", [replace, overwrite, Path.unlink])
def test_file_that_changes_while_it_is_loaded(sharded, change, monkeypatch):
    """What was read last may be the new file's, or half of it: with the same shapes nothing else would tell."""
    monkeypatch.setattr(loader, "JOB_BYTES", 1024)
    done = []

    def progress(now, total):
        if now == total:
            change(sharded / SECOND)
        done.append(now)

    with pytest.raises(CheckpointError, match=f"{SECOND} (changed while it was read|cannot be read)"):
        load_model(sharded, device="cpu", dtype=torch.float32, progress=progress)
    assert len(done) > 10


def test_resolve_folder(single):
    assert resolve_checkpoint(single) == resolve_checkpoint(str(single)) == single


def test_resolve_bundled_name_first(single, monkeypatch, tmp_path):
    bundled = tmp_path / "package" / "assets" / "rose-demo"
    write_checkpoint(bundled)
    monkeypatch.setattr("rose.weights.resolve.files", lambda package: tmp_path / "package")
    (tmp_path / "rose-demo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_checkpoint("rose-demo") == bundled
    assert resolve_checkpoint("./rose-demo").resolve() == tmp_path / "rose-demo"


def test_resolve_nothing(tmp_path, single):
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*nowhere"):
        resolve_checkpoint(str(tmp_path / "nowhere"))
    with pytest.raises(CheckpointError, match="is a file"):
        resolve_checkpoint(single / "config.json")
    with pytest.raises(CheckpointError, match=r"at x{300}: .*File name too long"):
        resolve_checkpoint("x" * 300)
    with pytest.raises(CheckpointError, match="at ~no_such_user/x: Could not determine home"):
        resolve_checkpoint("~no_such_user/x")


def test_resolve_a_folder_that_nobody_may_look_into(monkeypatch, single):
    def stat(path, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(CheckpointError, match=r"cannot look for a checkpoint at .*single: .*Permission denied"):
        resolve_checkpoint(single)


def test_resolve_a_published_name_without_its_owner(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"no checkpoint at gpt-oss-20b: .* openai/gpt-oss-20b; .* dummy"):
        resolve_checkpoint("gpt-oss-20b")


def test_resolve_from_the_hub(monkeypatch, tmp_path):
    calls = []

    def download(repository, **options):
        calls.append((repository, options))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert resolve_checkpoint("openai/gpt-oss-20b") == tmp_path
    ((repository, options),) = calls
    assert repository == "openai/gpt-oss-20b"
    assert options["ignore_patterns"] == ["original/*", "metal/*"]
    assert {"*.safetensors", "*.json"} <= set(options["allow_patterns"])


def test_hub_that_does_not_answer(monkeypatch):
    def download(repository, **options):
        raise OSError("Name or service not known\nand more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(
        CheckpointError, match=r"someone/something .*cannot be had from the Hub: Name or service not known$"
    ):
        resolve_checkpoint("someone/something")
