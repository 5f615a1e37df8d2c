"""The benchmark of a start, on the bundled model."""

import subprocess
import sys

import pytest


def seconds(*flags: str) -> dict[str, float]:
    command = [sys.executable, "-m", "rose.bench.startup", "rose-demo", "--device", "cpu", *flags]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    timed = [line.rsplit(maxsplit=2) for line in lines if line.endswith(" s")]
    return {name: float(value) for name, value, _ in timed}


def test_the_parts_are_all() -> None:
    parts = seconds()
    assert {"import torch", "rose's imports", "weights", "first token"} <= parts.keys()
    assert parts.pop("in all") == pytest.approx(sum(parts.values()), abs=0.1)
    assert all(value >= 0 for value in parts.values())
    assert parts["import torch"] > 0


def test_a_servers_start() -> None:
    assert seconds("--serve").keys() == {"rose serve", "in all"}
