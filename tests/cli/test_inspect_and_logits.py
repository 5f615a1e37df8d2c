import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rose.cli.main import app
from rose.errors import CheckpointError, ConfigError, ContextLengthExceeded, RequestError
from rose.weights.loader import load_model
from tests.checkpoints import TinyShape, write_checkpoint
from tests.models.running import run_in_chunks

SHAPE = TinyShape(original_context=16, factor=2.0)


@pytest.fixture
def folder(tmp_path):
    return write_checkpoint(tmp_path / "checkpoint", SHAPE)


def rose(*arguments):
    return app([str(argument) for argument in arguments], exit_on_error=False, result_action="return_value")


def test_inspect_json(folder, capsys):
    rose("inspect", folder, "--json")
    report = json.loads(capsys.readouterr().out)
    assert report["architecture"] == "gpt_oss"
    assert report["config"]["hidden_size"] == 64
    assert report["config"]["layer_windows"] == [8, None, 8]
    tensors = {tensor["name"]: tensor for tensor in report["tensors"]}
    assert tensors["model.layers.2.self_attn.v_proj.bias"] == {
        "name": "model.layers.2.self_attn.v_proj.bias",
        "dtype": "BF16",
        "shape": [32],
        "bytes": 64,
        "file": "model.safetensors",
        "destination": "blocks.2.attn.qkv.bias[128:160]",
        "transform": "copy",
    }
    parameters = {parameter["name"]: parameter for parameter in report["filled_parameters"]}
    assert parameters["blocks.2.attn.qkv.bias"] == {
        "name": "blocks.2.attn.qkv.bias",
        "dtype": "BF16",
        "shape": [160],
        "sources": [f"model.layers.2.self_attn.{letter}_proj.bias" for letter in "qkv"],
    }
    assert sorted(name for p in parameters.values() for name in p["sources"]) == sorted(tensors)
    assert (report["layout"], report["formats"]) == ("hf", {"experts": "mxfp4", "dense": "bf16"})
    assert report["manifest"] is None
    totals = report["totals"]
    assert (
        totals["bytes"] == sum(tensor["bytes"] for tensor in tensors.values()) == sum(totals["bytes_by_dtype"].values())
    )
    assert totals["tensors"] == len(tensors)
    assert report["problems"] == []


def test_inspect_table_gives_full_names(folder, capsys):
    rose("inspect", folder)
    out = capsys.readouterr().out
    assert "model.layers.2.mlp.experts.gate_up_proj_blocks" in out
    assert "blocks.2.attn.qkv.weight[96:128]" in out
    assert "7 × 64 × 3 × 16" in out


def test_inspect_shows_names_as_they_are(tmp_path, capsys):
    """Not as markup, nor as commands to the terminal."""
    folder = write_checkpoint(tmp_path / "[bold] model [", SHAPE)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"[/red]\x1b[2J\n": torch.zeros(1)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="cannot be loaded: 1 problem"):
        rose("inspect", folder)
    out = capsys.readouterr().out
    assert f"{folder}: gpt_oss" in out, "in one line, however long the path"
    assert out.count(r"[/red]\x1b[2J\n") == 2
    assert "\x1b[2J" not in out


def test_inspect_shows_problems_and_fails(folder, capsys):
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"stray": torch.ones(1)}, path)
    with pytest.raises(CheckpointError, match=r"1 problem"):
        rose("inspect", folder)
    assert "stray [1] belongs nowhere" in capsys.readouterr().out


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("chunk", [[], ["--chunk", 5], ["--chunk", 1]], ids=str)
def test_logits(folder, tmp_path, chunk, wrapped):
    ids = [1, 96, 0, 5, 5, 17, 3, 80, 2, 44, 9]
    (tmp_path / "ids.json").write_text(json.dumps({"tokens": ids} if wrapped else ids))
    rose("logits", "--model", folder, "--tokens", tmp_path / "ids.json", "--out", tmp_path / "out.npy", *chunk)
    logits = np.load(tmp_path / "out.npy")
    assert (logits.shape, logits.dtype) == ((11, 97), np.float32)
    expected = run_in_chunks(load_model(folder, device="cpu", dtype=torch.float32), ids, [11])
    assert np.abs(logits - expected.numpy()).max() < 1e-4


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("[0, 97]", RequestError, "token id 97 at 1 is not in the vocabulary, 0 ... 96"),
        ("[-1]", RequestError, "token id -1"),
        ("[]", RequestError, "one or more integer token ids"),
        ("[true]", RequestError, "integer token ids"),
        ("[1.0]", RequestError, "integer token ids"),
        ('{"ids": [1]}', RequestError, "integer token ids"),
        ("[1", RequestError, "cannot read token ids"),
        ("[" * 100_000, RequestError, "cannot read token ids"),
        (str([1] * 33), ContextLengthExceeded, "33 tokens do not fit the model's context of 32"),
    ],
)
def test_bad_token_ids(folder, tmp_path, text, error, message):
    (tmp_path / "ids.json").write_text(text)
    with pytest.raises(error, match=message):
        rose("logits", "--model", folder, "--tokens", tmp_path / "ids.json", "--out", tmp_path / "out.npy")
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_no_gpu(folder, tmp_path):
    (tmp_path / "ids.json").write_text("[1]")
    with pytest.raises(ConfigError, match="finds no GPU"):
        rose(
            "logits", "--model", folder, "--tokens", tmp_path / "ids.json", "--out", tmp_path / "o", "--device", "cuda"
        )


def test_unwritable_output_and_bad_chunk(folder, tmp_path):
    (tmp_path / "ids.json").write_text("[1]")
    where = ["--model", folder, "--tokens", tmp_path / "ids.json", "--out"]
    with pytest.raises(ConfigError, match="cannot write"):
        rose("logits", *where, tmp_path / "no" / "folder" / "out.npy")
    with pytest.raises(ConfigError, match="--chunk must be at least 1, got 0"):
        rose("logits", *where, tmp_path / "out.npy", "--chunk", 0)
