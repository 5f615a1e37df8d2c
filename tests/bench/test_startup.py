"""The benchmark of a start, on the bundled model."""

import subprocess
import sys
import time

import pytest


def seconds(*flags: str) -> dict[str, float]:
    command = [sys.executable, "-m", "rose.bench.startup", "rose-demo", "--device", "cpu", *flags]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    timed = [line.rsplit(maxsplit=2) for line in lines if line.endswith(" s")]
    return {name: float(value) for name, value, _ in timed}


def test_the_parts_are_all() -> None:
    begin = time.perf_counter()
    parts = seconds()
    passed = time.perf_counter() - begin
    assert {"import torch", "rose's imports", "weights", "first token"} <= parts.keys()
    assert passed / 2 < parts.pop("in all") < passed, "but for the interpreter's own start and end"
    assert all(value >= 0 for value in parts.values())
    assert parts["import torch"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("startup nope", "no checkpoint at nope"),
        ("startup rose-demo --experts foo", "experts must be one of"),
        ("constraints nope", "no checkpoint at nope"),
        ("frontend --api nope", "--api must be of chat, responses"),
        ("frontend --streams many", "--streams must be numbers"),
    ],
)
def test_a_mistake_is_one_line(arguments: str, message: str) -> None:
    name, *flags = arguments.split()
    command = [sys.executable, "-m", f"rose.bench.{name}", *flags]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    [line] = done.stderr.splitlines()
    assert line.startswith(f"rose: error: {message}")
    assert (done.returncode, done.stdout) == (2, "")


def test_a_servers_start() -> None:
    assert seconds("--serve").keys() == {"rose serve", "in all"}
