"""The journal of an unfinished conversion: what is safely on the disk, so that another run can go on from there.

One JSON object a line. The first says what is being made; each of the others accounts for the rules that were done
since the one before. They stand in one line because they may fill parts of one tensor, of which all or none must be
done. A line is written only after the data it speaks of. A damaged line is, with all after it, as if it were not there.
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
        """Begin a journal for `job`, or go on with one.

        Raises ConfigError if the folder has that of another job, or files and no journal that can be read.
        """
        self.path = folder / JOURNAL_NAME
        self.done: dict[int, Account] = {}
        lines = _complete_lines(self.path)
        kept: list[Any] = [dict(job)]
        if lines:
            if lines[0] != dict(job):
                raise ConfigError(
                    f"{folder} is an unfinished conversion of something else, or to something else; remove it first"
                )
            for line in lines[1:]:
                try:
                    self.done |= {int(rule): Account.from_json(account) for rule, account in line.items()}
                except (KeyError, TypeError, ValueError, AttributeError):
                    break
                kept.append(line)
        elif self.path.exists() or any(folder.glob("*.safetensors")):
            raise ConfigError(f"{folder} has no journal that can be read; remove it first")
        # Written anew, so that a damaged line is gone; and aside, so that no line is lost if that is interrupted.
        aside = self.path.with_suffix(".new")
        write_durably(aside, "".join(json.dumps(line) + "\n" for line in kept))
        aside.replace(self.path)
        self._file = self.path.open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, accounts: Mapping[int, Account]) -> None:
        """Record rules, by number, whose data is on the disk."""
        self._file.write(json.dumps({rule: account.to_json() for rule, account in accounts.items()}) + "\n")
        self.done |= accounts
        self._file.flush()
        os.fsync(self._file.fileno())


def _complete_lines(path: Path) -> list[Any]:
    """The values of the lines before the first that is damaged or was cut off."""
    if not path.is_file():
        return []
    lines: list[Any] = []
    for text in path.read_bytes().split(b"\n")[:-1]:
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines
