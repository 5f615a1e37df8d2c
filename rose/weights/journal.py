"""The journal of an unfinished conversion: what is safely on the disk, so that another run can go on from there.

One JSON object a line. The first says what is being made; each of the others accounts for one rule that is done. A
line is written only after the data it speaks of, and a last line that was cut off is as if it were not there.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from rose.errors import ConfigError
from rose.weights.durable import write_durably
from rose.weights.manifest import Account

JOURNAL_NAME = "journal.jsonl"


class Journal:
    """Open for appending. Use it in a `with` statement."""

    def __init__(self, folder: Path, job: Mapping[str, Any]) -> None:
        """Begin a journal for `job`, or go on with one. Raises ConfigError if the folder has that of another job."""
        self.path = folder / JOURNAL_NAME
        self.done: dict[int, Account] = {}
        lines = _complete_lines(self.path)
        if lines:
            if lines[0] != dict(job):
                raise ConfigError(
                    f"{folder} is an unfinished conversion of something else, or to something else; remove it first"
                )
            self.done = {line["rule"]: Account.from_json(line["account"]) for line in lines[1:]}
        # Written anew, so that a cut-off line is gone; and aside, so that no line is lost if that is interrupted.
        aside = self.path.with_suffix(".new")
        write_durably(aside, "".join(json.dumps(line) + "\n" for line in lines or [dict(job)]))
        aside.replace(self.path)
        self._file = self.path.open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, accounts: Mapping[int, Account]) -> None:
        """Record rules, by number, whose data is on the disk."""
        for rule, account in accounts.items():
            self._file.write(json.dumps({"rule": rule, "account": account.to_json()}) + "\n")
            self.done[rule] = account
        self._file.flush()
        os.fsync(self._file.fileno())


def _complete_lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    lines: list[dict[str, Any]] = []
    for text in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
        if not text.endswith("\n"):
            lines.pop()
    return lines
