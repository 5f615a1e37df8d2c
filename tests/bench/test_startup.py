"""The benchmark of a start, on the bundled model."""

import subprocess
import sys
import time


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


def test_a_servers_start() -> None:
    assert seconds("--serve").keys() == {"rose serve", "in all"}
