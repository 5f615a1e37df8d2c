"""The commands about weights, from their command lines."""

import json

import pytest

from rose.cli.main import app
from rose.errors import CheckpointError, ConfigError
from rose.models.gpt_oss.published import published_config
from rose.weights.checkpoint import Checkpoint
from tests.checkpoints import TinyShape, write_checkpoint

SHAPE = TinyShape(vocab_size=300)


def rose(*arguments):
    return app([str(argument) for argument in arguments], exit_on_error=False, result_action="return_value")


@pytest.fixture
def folder(tmp_path):
    return write_checkpoint(tmp_path / "checkpoint", SHAPE)


def test_convert_prints_what_was_lost(folder, tmp_path, capsys):
    rose("convert", folder, tmp_path / "out", "--experts", "fp8", "--dense", "fp8-block")
    out = capsys.readouterr().out
    assert "mxfp4 → fp8" in out
    assert "bf16 → fp8-block" in out
    assert "rose layout, experts fp8, dense fp8-block" in out
    rose("inspect", tmp_path / "out", "--hashes")
    out = capsys.readouterr().out
    assert "converted from" in out
    assert "blocks.2.mlp.gate_up.row_scales" in out
    rose("inspect", tmp_path / "out", "--json")
    assert json.loads(capsys.readouterr().out)["manifest"]["formats"] == {"experts": "fp8", "dense": "fp8-block"}


def test_convert_refuses_a_folder_that_is_there(folder, tmp_path):
    with pytest.raises(ConfigError, match="exists already"):
        rose("convert", folder, folder)
    with pytest.raises(CheckpointError):
        rose("convert", tmp_path / "nothing", tmp_path / "out")


def test_inspect_hashes_needs_a_manifest(folder):
    with pytest.raises(CheckpointError, match="no manifest"):
        rose("inspect", folder, "--hashes")


def test_synth_of_a_config(tmp_path):
    small = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 100, "num_local_experts": 4}
    (tmp_path / "config.json").write_text(json.dumps(published_config("gpt-oss-20b", 2) | small))
    for seed in (0, 0, 1):
        rose(
            "synth",
            tmp_path,
            tmp_path / f"out{len(list(tmp_path.iterdir()))}",
            "--seed",
            seed,
            "--tokenizer",
            "rose-demo",
        )
    first, second, other = sorted(path for path in tmp_path.iterdir() if path.is_dir())
    digests = [Checkpoint(path).manifest["ledger"][0]["targets"] for path in (first, second, other)]
    assert digests[0] == digests[1] != digests[2]
    assert (first / "tokenizer.json").is_file()
    assert json.loads((first / "config.json").read_text())["num_hidden_layers"] == 2


@pytest.mark.parametrize("against", ["reference", "transformers"])
def test_verify_finds_bf16_exact_and_fp8_near(folder, against, capsys):
    rose("verify", folder, "--against", against, "--max-tokens", 3, "--prompts", 2, "--json")
    rows = {(row["experts"], row["dense"]): row for row in json.loads(capsys.readouterr().out)["formats"]}
    for formats in (("bf16", "bf16"), ("mxfp4", "bf16")):
        assert rows[formats]["max_abs"] < 1e-4
        assert rows[formats]["top1"] == 1
        assert rows[formats]["same_greedy_tokens"] == rows[formats]["num_greedy_tokens"] == 6
    assert 0.01 < rows["fp8", "bf16"]["relative_rms"] < 0.3
    assert rows["fp8", "fp8"]["mean_kl"] > rows["bf16", "bf16"]["mean_kl"]


def test_verify_in_a_table(folder, capsys):
    rose("verify", folder, "--experts", "fp8", "--max-tokens", 0, "--prompts", 1)
    assert "0 of 0" in capsys.readouterr().out


def test_verify_compares_the_formats_that_are_chosen(folder, capsys):
    def pairs(*arguments):
        rose("verify", folder, *arguments, "--max-tokens", 0, "--prompts", 1, "--json")
        return [(row["experts"], row["dense"]) for row in json.loads(capsys.readouterr().out)["formats"]]

    assert len(pairs()) == 7
    assert pairs("--dense", "fp8") == [("bf16", "fp8"), ("fp8", "fp8")]
    assert pairs("--experts", "fp8", "--dense", "bf16") == [("fp8", "bf16")]


def test_verify_refuses_what_it_cannot_do(folder, tmp_path):
    with pytest.raises(ConfigError, match="--prompts from 1 to 5"):
        rose("verify", folder, "--prompts", 6)
    rose("convert", folder, tmp_path / "out", "--experts", "fp8")
    with pytest.raises(ConfigError, match="hf layout only"):
        rose("verify", tmp_path / "out", "--against", "transformers")
