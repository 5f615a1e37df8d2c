"""The commands about weights, from their command lines."""

import json
from types import SimpleNamespace

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers

from rose.cli.main import app, main
from rose.cli.step_log import StepLog
from rose.cli.verify_prompts import Prompts
from rose.errors import CheckpointError, ConfigError
from rose.log import setup_logging
from rose.models.gpt_oss.published import published_config
from rose.weights.checkpoint import Checkpoint
from tests.chat.tokenizers_for_tests import chatml_tokenizer, tiny_tokenizer
from tests.checkpoints import TinyShape, write_checkpoint

SHAPE = TinyShape(vocab_size=300)


def plain_tokenizer():
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator([], trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return backend


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


def test_what_an_hf_layout_needs_is_told_by_flags_that_work(folder, tmp_path, capsys):
    rose("convert", folder, tmp_path / "fp8", "--experts", "fp8", "--dense", "fp8")
    with pytest.raises(ConfigError, match=r"not fp8, fp8: give --experts mxfp4 .or bf16. --dense bf16"):
        rose("convert", tmp_path / "fp8", tmp_path / "hf", "--layout", "hf")
    for experts in ("mxfp4", "bf16"):
        flags = ("--layout", "hf", "--experts", experts, "--dense", "bf16")
        rose("convert", tmp_path / "fp8", tmp_path / experts, *flags)
        assert f"hf layout, experts {experts}, dense bf16" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["convert", "synth"])
def test_ctrl_c_says_that_nothing_is_lost(command, folder, tmp_path, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("rose.weights.convert.convert", interrupted)
    monkeypatch.setattr("sys.argv", ["rose", command, str(folder), str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "rose: interrupted; the same command goes on where it stopped"


def test_convert_refuses_a_folder_that_is_there(folder, tmp_path):
    with pytest.raises(ConfigError, match="exists already"):
        rose("convert", folder, folder)
    with pytest.raises(CheckpointError):
        rose("convert", tmp_path / "nothing", tmp_path / "out")


def test_inspect_hashes_needs_a_manifest(folder):
    with pytest.raises(CheckpointError, match="no manifest"):
        rose("inspect", folder, "--hashes")


def test_synth_of_a_config(tmp_path, capsys):
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
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 3
    assert out[0].startswith("hf layout, experts mxfp4, dense bf16: ")
    assert out[0].endswith(" bytes in 1 file(s)")
    first, second, other = sorted(path for path in tmp_path.iterdir() if path.is_dir())
    digests = [Checkpoint(path).manifest["ledger"][0]["targets"] for path in (first, second, other)]
    assert digests[0] == digests[1] != digests[2]
    assert (first / "tokenizer.json").is_file()
    assert json.loads((first / "config.json").read_text())["num_hidden_layers"] == 2


def verified(capsys, *arguments):
    """The report of `rose verify`, with its rows by their formats."""
    rose("verify", *arguments, "--json")
    report = json.loads(capsys.readouterr().out)
    return report, {(row["experts"], row["dense"]): row for row in report["formats"]}


@pytest.mark.parametrize("against", ["reference", "transformers"])
def test_verify_finds_bf16_exact_and_fp8_near(folder, against, capsys):
    report, rows = verified(capsys, folder, "--against", against, "--max-tokens", 3, "--num-prompts", 2)
    assert report["num_prompts"] == 2
    for formats in (("bf16", "bf16"), ("mxfp4", "bf16")):
        for kind, num_positions in (("answers", 6), ("prompts", 2 * 23)):
            agreement = rows[formats][kind]["oracle"]
            assert agreement["num_positions"] == num_positions
            assert agreement["max_abs"] < 1e-4
            assert agreement["top1"] == 1
        assert rows[formats]["same_answers"] == rows[formats]["num_answers"] == 2
    assert 0.01 < rows["fp8", "bf16"]["prompts"]["oracle"]["relative_rms"] < 0.3
    assert rows["fp8", "fp8"]["prompts"]["oracle"]["mean_kl"] > rows["bf16", "bf16"]["prompts"]["oracle"]["mean_kl"]


def test_verify_compares_with_bf16_in_the_same_activations(folder, capsys):
    """What bfloat16 activations cost is no part of what a format costs."""
    _, rows = verified(capsys, folder, "--dtype", "bfloat16", "--max-tokens", 2)
    bf16, fp8 = rows["bf16", "bf16"]["prompts"], rows["fp8", "bf16"]["prompts"]
    assert bf16["oracle"]["rms"] > 1e-3
    assert bf16["bf16"]["rms"] < bf16["oracle"]["rms"] / 100
    assert fp8["bf16"]["rms"] > bf16["oracle"]["rms"]


def test_verify_in_tables(folder, capsys):
    rose("verify", folder, "--experts", "fp8", "--max-tokens", 0, "--num-prompts", 1)
    out = capsys.readouterr().out
    assert "answers: 0 positions" in out
    assert "prompts: 23 positions" in out
    assert "0 of 0" in out


def test_verify_says_what_it_is_at(folder, capsys, monkeypatch):
    monkeypatch.setattr("rose.cli.step_log._LOG_EVERY_S", 0)
    rose("verify", folder, "--dense", "fp8", "--max-tokens", 2, "--num-prompts", 3)
    lines = [line.partition("rose.cli.step_log: ")[2] for line in capsys.readouterr().err.splitlines()]
    lines = [line for line in lines if line]
    assert lines[0] == "drafting answers to 3 prompts"
    first = lines.index("oracle, pass 1: 3 texts of 78 tokens")
    assert lines[first + 1 : first + 4] == [f"{lines[first]}: layer {n} of {SHAPE.num_layers}" for n in (1, 2, 3)]
    for number, experts in ((1, "bf16"), (2, "fp8")):
        step = f"format {number} of 2: experts {experts}, dense fp8"
        begin = lines.index(step)
        assert lines[begin : begin + 4] == [step, *(f"{step}: text {n} of 3" for n in (1, 2, 3))]


def test_steps_are_told_now_and_then(capsys, monkeypatch):
    setup_logging("verify")
    clock = iter([0.0, 1.0, 4.9, 5.1, 5.1, 9.0, 10.2, 10.2])
    monkeypatch.setattr("rose.cli.step_log.time", SimpleNamespace(monotonic=lambda: next(clock)))
    steps = StepLog()
    steps.begin("reading")
    for number in range(1, 6):
        steps.at("page", number, 5)
    told = [line.partition("step_log: ")[2] for line in capsys.readouterr().err.splitlines()]
    assert told == ["reading", "reading: page 3 of 5", "reading: page 5 of 5"]


def test_verify_compares_the_formats_that_are_chosen(folder, capsys):
    def pairs(*arguments):
        return list(verified(capsys, folder, *arguments, "--max-tokens", 0, "--num-prompts", 1)[1])

    assert len(pairs()) == 7
    assert pairs("--dense", "fp8") == [("bf16", "fp8"), ("fp8", "fp8")]
    assert pairs("--experts", "fp8", "--dense", "bf16") == [("fp8", "bf16")]


def test_verify_holds_chats_with_rose_demo(tmp_path, capsys):
    """Its own prompts, and those of a file: the answers are what a float model says, and FP8 says the same."""
    _, rows = verified(capsys, "rose-demo", "--experts", "fp8", "--num-prompts", 4, "--max-tokens", 24)
    row = rows["fp8", "auto"]
    assert row["same_answers"] == row["num_answers"] == 4
    assert row["answers"]["oracle"]["top1"] == 1
    assert 40 < row["answers"]["oracle"]["num_positions"] < 4 * 24  # they end by themselves
    chat = {"messages": [{"role": "user", "content": "What is 12 + 7?"}], "reasoning_effort": "low"}
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps(chat) + "\n\n" + json.dumps({"prompt_token_ids": [5, 6, 7]}) + "\n")
    report, rows = verified(capsys, "rose-demo", "--experts", "fp8", "--prompts", path, "--max-tokens", 4)
    assert report["num_prompts"] == 2
    assert rows["fp8", "auto"]["answers"]["oracle"]["num_positions"] == 8


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_no_gpu(tmp_path):
    for arguments in (("verify", "rose-demo"), ("convert", "rose-demo", tmp_path), ("synth", "gpt-oss-20b", tmp_path)):
        with pytest.raises(ConfigError, match="finds no GPU"):
            rose(*arguments, "--device", "cuda")


def test_verify_refuses_what_it_cannot_do(folder, tmp_path):
    with pytest.raises(ConfigError, match="--num-prompts at least 1"):
        rose("verify", folder, "--num-prompts", 0)
    rose("convert", folder, tmp_path / "out", "--experts", "fp8")
    with pytest.raises(ConfigError, match="hf layout only"):
        rose("verify", tmp_path / "out", "--against", "transformers")


@pytest.mark.parametrize(
    ("model", "line", "message"),
    [
        ("rose-demo", "{", "line 2: .*delimiter|line 2: Expecting"),
        ("rose-demo", "[1, 2]", 'line 2: expected {"messages"'),
        ("rose-demo", '{"prompt": "a", "n": 2}', 'line 2: expected {"messages"'),
        ("rose-demo", '{"prompt": ""}', "line 2: a prompt needs tokens"),
        ("rose-demo", '{"prompt_token_ids": [2048]}', "line 2: a prompt needs tokens, with ids from 0 to 2047"),
        ("rose-demo", '{"prompt_token_ids": [-1]}', "line 2: a prompt needs tokens"),
        ("rose-demo", '{"prompt_token_ids": [true]}', 'line 2: expected {"messages"'),
        ("rose-demo", '{"messages": [{"role": "user", "content": 3}]}', "line 2: .*content"),
        ("rose-demo", '{"messages": []}', "line 2: messages must not be empty"),
        ("rose-demo", '{"messages": [], "max_tokens": 3}', 'line 2: expected {"messages"'),
        ("tiny", '{"prompt": "a"}', "line 2: the checkpoint has no tokenizer"),
        ("tiny", '{"messages": []}', "line 2: the checkpoint has no chat format"),
    ],
)
def test_verify_says_which_prompt_is_wrong(model, line, message, folder, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt_token_ids": [1]}\n' + line + "\n")
    with pytest.raises(ConfigError, match=message):
        rose("verify", folder if model == "tiny" else model, "--prompts", path)
    path.write_text("\n")
    with pytest.raises(ConfigError, match="has no prompts"):
        rose("verify", "rose-demo", "--prompts", path)
    with pytest.raises(ConfigError, match="cannot read"):
        rose("verify", "rose-demo", "--prompts", tmp_path)


@pytest.mark.parametrize(("pick", "num_chats"), [(tiny_tokenizer, 60), (chatml_tokenizer, 60), (plain_tokenizer, 5)])
def test_the_prompts_fit_the_tokenizer(pick, num_chats, tmp_path):
    """Chats where there is a chat format, of whatever family, and plain texts where there is none."""
    tokenizer = pick()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    prompts = Prompts(tmp_path, 500_000)
    ids = prompts.built_in()
    assert len(ids) == num_chats
    shown = tokenizer.decode(ids[0], skip_special_tokens=False)
    assert ("What's 4 added to 703?" in shown) == (num_chats == 60)
    assert bool(prompts.stop_ids) == (num_chats == 60)
    assert (shown == "The capital of France is") == (num_chats == 5)
