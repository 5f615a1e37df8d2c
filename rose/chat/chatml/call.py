"""What stands between `<tool_call>` and `</tool_call>`: a JSON object with a function's name and its arguments.

In the usual order the arguments are passed on as they come. Any other object is read once it is whole.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from rose.chat.chatml.json_cursor import JsonCursor
from rose.chat.tokenizer import without_surrogates

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)')
_MAX_HEAD_CHARS = 1024  # a longer one is read when the call is whole
_BLANKS_AND_BRACES = re.compile(r"[\s}]*\Z")


@dataclass(frozen=True, slots=True)
class Call:
    """A function's name and its arguments, which are JSON if the model kept to it."""

    name: str
    arguments: str


class CallReader:
    """Reads one call.

    name: the function's, once it is known that the arguments follow. body: all of the text so far, until then.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.has_rest = False  # behind the arguments stands more than what closes the object
        self._body: list[str] = []
        self._num_chars = 0
        self._cursor = JsonCursor()
        self._is_past_arguments = False

    @property
    def body(self) -> str:
        """The text so far, of a call whose name is not known."""
        return "".join(self._body)

    @property
    def in_string(self) -> bool:
        """Whether the next character is inside one of JSON's strings, where no tag ends the call."""
        return self._cursor.in_string and not self._is_past_arguments

    def push(self, text: str) -> str:
        """Take more text; return what it adds to the arguments."""
        if self.name is not None:
            return self._push_arguments(text)
        may_be_head = self._num_chars < _MAX_HEAD_CHARS
        self._body.append(text)
        self._num_chars += len(text)
        if may_be_head:
            body = self.body
            if (head := _HEAD.match(body, 0, _MAX_HEAD_CHARS)) and (name := _name(head[1])):
                self.name = name
                self._cursor = JsonCursor()
                return self._push_arguments(body[head.end() :])
        self._cursor.push(text)
        return ""

    def whole(self) -> Call | None:
        """The call that the body is, if its name did not come first; None if it is none."""
        try:
            found = json.loads(self.body)
            if not isinstance(found, dict) or not (name := _stripped(found.get("name"))):
                return None
            return Call(name, _arguments(found))
        except (ValueError, RecursionError):
            return None

    def _push_arguments(self, text: str) -> str:
        if self._is_past_arguments:
            end: int | None = 0
        else:
            end = self._cursor.push(text)
            self._is_past_arguments = end is not None
        if end is None:
            return text
        self.has_rest |= _BLANKS_AND_BRACES.match(text, end) is None
        return text[:end]


def _name(quoted: str) -> str:
    try:
        return _stripped(json.loads(quoted))
    except ValueError:
        return ""


def _stripped(name: object) -> str:
    return without_surrogates(name).strip() if isinstance(name, str) else ""


def _arguments(found: dict[str, Any]) -> str:
    """The arguments under either of their names; a function without parameters may be called without any."""
    arguments = found.get("arguments", found.get("parameters", {}))
    return without_surrogates(arguments) if isinstance(arguments, str) and arguments else json.dumps(arguments)
