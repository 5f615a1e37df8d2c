"""A converted checkpoint whose files and manifest do not agree is refused, by name."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from rose.errors import CheckpointError
from rose.weights.checkpoint import Checkpoint
from rose.weights.convert import convert
from rose.weights.hashes import check_hashes
from rose.weights.loader import load_model
from tests.checkpoints import TinyShape, write_checkpoint


@pytest.fixture
def folder(tmp_path):
    source = write_checkpoint(tmp_path / "source", TinyShape(num_layers=2))
    convert(Checkpoint(source), tmp_path / "out", experts="fp8", max_shard_bytes=100_000)
    return tmp_path / "out"


def change_manifest(folder, change):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def shard(folder, number=2):
    return sorted(folder.glob("*.safetensors"))[number]


def assert_refused(folder, *fragments):
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(folder)
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_truncated_shard(folder):
    path = shard(folder)
    path.write_bytes(path.read_bytes()[:-1])
    assert_refused(folder, str(path), "not a sound safetensors file", "bytes, the file has")


@pytest.mark.parametrize("position", [0, 3, 7, 8, 30, 60])
def test_flipped_header(folder, position):
    path = shard(folder)
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    assert_refused(folder, path.name)


def test_renamed_tensor_in_the_header(folder):
    """The header is sound, the index and the manifest tell."""
    path = shard(folder)
    path.write_bytes(path.read_bytes().replace(b"blocks.0.", b"blocks.9.", 1))
    assert_refused(folder, path.name)


def test_missing_shard(folder):
    shard(folder).unlink()
    assert_refused(folder, shard(folder).name.replace("00004", "00003"), "missing")


def test_replaced_shard(folder):
    """As large, as well-formed and with the same names, but another header."""
    path = shard(folder)
    save_file(load_file(path), path, metadata={"made": "elsewhere"})
    assert_refused(folder, path.name, "manifest.json")


def test_header_with_other_offsets(folder):
    path = shard(folder)
    tensors = load_file(path)
    save_file({name: tensor.clone() for name, tensor in reversed(tensors.items())}, path, metadata={"format": "pt"})
    assert_refused(folder, path.name, "manifest.json")


def test_changed_data_is_found_by_its_hash(folder):
    checkpoint = Checkpoint(folder)
    check_hashes(checkpoint)
    info = checkpoint.tensors["blocks.1.mlp.down.weight"]
    data = bytearray(info.file.read_bytes())
    data[info.offset + 17] ^= 1
    info.file.write_bytes(data)
    with pytest.raises(
        CheckpointError, match=r"model-.*: the data of blocks.1.mlp.down.weight is not what was written"
    ):
        check_hashes(Checkpoint(folder))
    (folder / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="no hashes to compare with"):
        check_hashes(Checkpoint(folder))


def test_duplicate_name_in_a_header(folder):
    path = shard(folder)
    text = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0")
    assert_refused(folder, str(path), "its header names a twice")


def test_overlapping_tensors(folder):
    path = shard(folder)
    text = b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}'
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 3)
    assert_refused(folder, str(path), "the data of b begins at")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(rose_manifest=99), "is of version 99, this rose reads 1"),
        (lambda m: m.pop("files"), "is damaged: Object missing required field `files`"),
        (lambda m: m.update(ledger=[1]), "is damaged: Expected `object`, got `int` - at `$.ledger[0]`"),
        (lambda m: m.update(source=5), "got `int` - at `$.source`"),
        (lambda m: m["source"].pop("sha256"), "missing required field `sha256` - at `$.source`"),
        (lambda m: m.update(formats=None), "got `null` - at `$.formats`"),
        (lambda m: m.update(source="\ud800"), "is damaged: "),
        (
            lambda m: m["ledger"][0].update(loss={"x": 1}),
            "missing required field `exact_blocks`",
        ),
        (lambda m: m["ledger"][0].update(targets=list(m["ledger"][0]["targets"])), "got `array` - at `$.ledger[0]"),
        (lambda m: m["files"].popitem(), "does not name model-"),
        (lambda m: m["files"].update({"more.safetensors": {"bytes": 1, "header_sha256": ""}}), "which is missing"),
        (lambda m: next(iter(m["files"].values())).update(bytes=5), "says 5"),
        (lambda m: next(iter(m["files"].values())).update(header_sha256="0"), "not the one that"),
        (lambda m: m["ledger"].pop(), "but not in"),
        (lambda m: m["ledger"][0]["targets"].update(nothing="0"), "but in no file"),
        (lambda m: m["files"].update({"x" * 300: {"bytes": 1, "header_sha256": ""}}), "File name too long"),
    ],
)
def test_manifest_that_disagrees(folder, change, message):
    change_manifest(folder, change)
    assert_refused(folder, "manifest.json", message)


def test_formats_that_the_files_do_not_have(folder):
    change_manifest(folder, lambda manifest: manifest["formats"].update(experts="mxfp4"))
    assert_refused(folder, "manifest.json says that the formats are", "mxfp4", "config.json says")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["experts"] = "mxfp4"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"config.json: .* experts are in mxfp4, the tensors' names say fp8"):
        load_model(folder, device="cpu", dtype=torch.float32)


def test_a_manifest_of_another_program_is_not_looked_at(folder):
    (folder / "manifest.json").write_text('{"name": "something"}')
    assert Checkpoint(folder).manifest is None


def test_unreadable_manifest(folder):
    for text in ("{", "[" * 100_000):
        (folder / "manifest.json").write_text(text)
        assert_refused(folder, "manifest.json", "not readable JSON")


def test_a_manifest_that_takes_a_text_for_weights(folder):
    """Whose first bytes would make a header longer than all memory."""
    num_bytes = (folder / "config.json").stat().st_size
    change_manifest(folder, lambda m: m["files"].update({"config.json": {"bytes": num_bytes, "header_sha256": ""}}))
    assert_refused(folder, "config.json: its header is not the one")
