"""What a user sees of a model that loads."""

import io
import re
import sys

import pytest

from rose.cli import load_progress as module
from rose.cli.load_progress import load_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with load_progress("some/model") as show:
        show(0, 3 << 30)
        show(1 << 30, 3 << 30)
    assert "loading some/model" in terminal.getvalue()
    assert "1.0/3.0 GiB" in terminal.getvalue()


def test_log_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    # Not through the loggers, whose levels and handlers other tests of commands set for their process.
    monkeypatch.setattr(module.logger, "info", lambda text, *values: lines.append(text % values))
    monkeypatch.setattr(module, "_LOG_EVERY_S", 0.0)
    with load_progress("some/model") as show:
        show(0, 0)  # nothing is known yet
        show(10**9, 4 * 10**9)
    first, second = lines
    assert first == "loading some/model"
    assert re.fullmatch(r"loading some/model: 25% of 4\.0 GB, \d+ s to go", second)  # a slow machine has longer to go


def test_time_to_go_is_by_the_latest_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    clock = [100.0]
    monkeypatch.setattr(module.logger, "info", lambda text, *values: lines.append(text % values))
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    with load_progress("some/model", verb="converting") as show:
        show(500, 1000)  # done before, in no time
        for done in (600, 700, 800):  # quick at first
            clock[0] += 10.0
            show(done, 1000)
        for done in range(801, 811):  # then slow: 1 in 10 s
            clock[0] += 10.0
            show(done, 1000)
        clock[0] += 1000.0
        show(810, 1000)
    assert lines[1].endswith("60% of 0.0 GB, 40 s to go")  # 100 in 10 s
    assert lines[-2].endswith("81% of 0.0 GB, 1900 s to go")
    assert lines[-1].endswith("81% of 0.0 GB")  # nothing happened: who knows
