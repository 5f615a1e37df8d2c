"""What the command line says to a mistake in it, and the list of commands."""

import subprocess
import sys

import pytest

from rose.cli.main import COMMANDS, main


def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """The one line on stderr with which `rose` refuses these arguments."""
    monkeypatch.setattr(sys, "argv", ["rose", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    [line] = err.splitlines()
    return line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("serve", "MODEL is missing. See `rose serve --help`."),
        ("generate", "MODEL is missing. See `rose generate --help`."),
        ("logits --model rose-demo", "--tokens is missing. See `rose logits --help`."),
        ("serve rose-demo --port", "--port needs a value. See `rose serve --help`."),
        ("serve rose-demo extra more", "Unexpected: extra more. See `rose serve --help`."),
        ("serve rose-demo --prot 1", "Unknown option: --prot. Did you mean --port? See `rose serve --help`."),
        ("serve rose-demo --port x", 'Invalid value for --port: unable to convert "x" into int.'),
        ("serve rose-demo --port 80.5", "Invalid value for --port: '80.5' is no whole number."),
        ("generate rose-demo --seed 1.0", "Invalid value for --seed: '1.0' is no whole number."),
        ("bench serve --seed 2.7", "Invalid value for --seed: '2.7' is no whole number."),
        ("serve rose-demo --max-model-len 1.0001k", "Invalid value for --max-model-len: '1.0001k' is no count such as"),
        ("serve rose-demo --max-model-len 12x", "Invalid value for --max-model-len: '12x' is no count such as"),
        ("serve rose-demo --port 99999", "--port must be from 0 to 65535, not 99999"),
        ("parse --model rose-demo --finish never", 'Invalid value "never" for --finish. Choose from: "stop",'),
        (f"serve {'x' * 300}", "cannot look for a checkpoint at xxx"),
        (
            "serve ~no_such_user/model",
            "cannot look for a checkpoint at ~no_such_user/model: Could not",
        ),
        (
            "inspect ~no_such_user/model",
            "cannot look for a checkpoint at ~no_such_user/model: Could not",
        ),
        ("convert rose-demo ~no_such_user/copy", "~no_such_user/copy: Could not determine home directory"),
        ("synth gpt-oss-20b ~no_such_user/copy", "~no_such_user/copy: Could not determine home directory"),
        ("synth gpt-oss-20b copy --layers 99999999999", "there must be from 1 to 4096 layers, not 99999999999"),
        ("serve rose-demo --max-model-len 1", "--max-model-len must be at least 2, not 1"),
        (
            "serve rose-demo --gpu-memory-utilization 2",
            "--gpu-memory-utilization must be above 0 and at most 1, not 2.0",
        ),
        ("serve rose-demo --device gpu", "--device must be auto, cpu, cuda or cuda:<n>, not 'gpu'"),
        (
            "serve rose-demo --max-num-batched-tokens 5",
            "--max-num-batched-tokens (5) must be at least --max-num-seqs (128)",
        ),
        ("bench prefill rose-demo --lengths 9 --experts x", "--experts must be one of auto, bf16,"),
        ("generate rose-demo --prompt a --max-num-seqs 0", "--max-num-seqs must be at least 1, not 0"),
        (
            "serve gpt-oss-20b",
            "no checkpoint at gpt-oss-20b: the Hub's is openai/gpt-oss-20b; --load-format dummy makes",
        ),
        (
            "inspect gpt-oss-20b",
            "no checkpoint at gpt-oss-20b: the Hub's is openai/gpt-oss-20b; load_format dummy makes",
        ),
        ("sing", 'Unknown command "sing". Available commands: serve, chat,'),
    ],
)
def test_a_mistake_is_one_line(arguments: str, message: str, capsys, monkeypatch) -> None:
    assert said(capsys, monkeypatch, *arguments.split()).startswith(f"rose: error: {message}")


def test_a_mistake_in_the_environment_names_the_variable(capsys, monkeypatch) -> None:
    monkeypatch.setenv("ROSE_PORT", "tcp://10.0.0.1:80")  # Kubernetes sets such variables for a service named rose
    assert "ROSE_PORT" in said(capsys, monkeypatch, "serve", "rose-demo")


def test_every_command_is_listed_with_what_it_does_and_without_torch() -> None:
    code = "import sys; from rose.cli.main import _run\ntry: _run([])\nfinally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    for name in COMMANDS:
        [line] = [line for line in done.stdout.splitlines() if line.startswith(f"│ {name} ")]
        assert len(line.strip("│ ").split()) > 3
