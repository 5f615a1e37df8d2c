"""Text in and out of the commands: what a model writes can hold any character, whatever the locale says."""

import io
import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO, cast

# Ends of lines to some readers, though not to JSON.
_LINE_ENDS = {ord(char): f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"}


def prepare_streams() -> None:
    """Make text UTF-8 on the standard streams, and a standard input that is closed an empty one."""
    if cast("TextIO | None", sys.stdin) is None:
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - it stays open
    if cast("TextIO | None", sys.stdout) is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - it stays open
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def discard_output() -> None:
    """Drop what standard output still holds, which the interpreter would try to write at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def as_one_line(text: str) -> str:
    """`text` with line ends and control characters escaped, which the name of a file or of a tensor may hold."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def json_line(value: Any) -> str:
    """`value` as JSON in one line, for readers that split lines at any of Unicode's line ends too."""
    return json.dumps(value, ensure_ascii=False).translate(_LINE_ENDS)
