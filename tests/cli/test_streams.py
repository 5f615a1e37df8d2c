"""Standard input and output of the commands, as processes of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rose.cli.main import app
from rose.errors import RequestError

SAMPLE = "<|channel|>final<|message|>é–😀"


def rose(*arguments: str, environment: dict[str, str] | None = None, **pipes) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "rose.cli.main", *arguments]
    return subprocess.run(command, env=environment, timeout=120, check=False, **{"capture_output": True, **pipes})


@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}])
def test_output_is_utf8_whatever_the_locale(environment):
    environment["PYTHONUTF8"] = "0"
    done = rose("parse", "--model", "rose-demo", "--text", "-", input=SAMPLE.encode(), environment=environment)
    assert done.stderr == b""
    assert json.loads(done.stdout)["content"] == "é–😀"


def test_a_line_of_output_has_no_other_line_ends():
    text = "<|channel|>final<|message|>a\u2028b\u2029c\x85d\x1ee\r"
    done = rose("parse", "--model", "rose-demo", "--text", "-", input=text.encode())
    [line] = done.stdout.decode().splitlines()
    assert json.loads(line)["content"] == "a\u2028b\u2029c\x85d\x1ee\r"


def test_a_closed_standard_input_is_empty():
    command = f'"{sys.executable}" -m rose.cli.main parse --model rose-demo --text - <&-'
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=120, check=True)
    assert json.loads(done.stdout)["content"] == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_one_line(unbuffered):
    with Path("/dev/full").open("wb") as full:
        done = rose(
            *("parse", "--model", "rose-demo", "--text", "-"),
            input=SAMPLE.encode(),
            environment={"PYTHONUNBUFFERED": unbuffered},
            capture_output=False,
            stdout=full,
            stderr=subprocess.PIPE,
        )
    assert (done.returncode, done.stderr) == (1, b"rose: error: No space left on device\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--input", "-"], {"input": Path("-")}),
        (["--prompt", "- a list", "--prompt", "--max-tokens"], {"prompt": ["- a list", "--max-tokens"]}),
        (["--prompt", "a", "--max-tokens", "3"], {"prompt": ["a"], "max_tokens": 3}),
    ],
)
def test_generate_takes_text_that_begins_with_a_hyphen(arguments, expected):
    _, bound, _ = app.parse_args(["generate", "rose-demo", *arguments])
    assert bound.arguments == {"model": "rose-demo"} | expected


def test_input_nested_too_deeply_is_one_line(tmp_path):
    (tmp_path / "deep").write_text("[" * 100_000)
    with pytest.raises(RequestError, match="deep, line 1: "):
        app(["generate", "rose-demo", "--input", str(tmp_path / "deep")], result_action="return_value")


def test_an_error_is_one_line_whatever_it_names(tmp_path):
    done = rose("inspect", str(tmp_path / "a\n\x1b[31mb"))
    [line] = done.stderr.decode().splitlines()
    assert line.startswith("rose: error: ")
    assert "a\\n\\x1b[31mb" in line
    assert done.returncode == 2
