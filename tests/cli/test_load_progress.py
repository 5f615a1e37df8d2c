"""What a user sees of a model that loads."""

import io
import logging
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


def test_log_lines_elsewhere(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("rose"), "propagate", True)
    monkeypatch.setattr(module, "_LOG_EVERY_S", 0.0)
    with caplog.at_level(logging.INFO, logger="rose"), load_progress("some/model") as show:
        show(0, 0)  # nothing is known yet
        show(10**9, 4 * 10**9)
    first, second = (record.getMessage() for record in caplog.records)
    assert first == "loading some/model"
    assert re.fullmatch(r"loading some/model: 25% of 4\.0 GB, \d+ s to go", second)  # a slow machine has longer to go
