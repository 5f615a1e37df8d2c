"""Following JSON as it is written, only as far as to know its strings and where its first value ends."""

import re

_STRUCTURE = re.compile(r'["\\\n{}\[\]]')


class JsonCursor:
    """Reads JSON in pieces of any size.

    in_string: whether the next character is inside a string. A line feed ends one: JSON has none inside, so that
    a quotation mark too many does not swallow everything behind it.
    """

    def __init__(self) -> None:
        self.in_string = False
        self._is_escaped = False
        self._depth = 0

    def push(self, text: str) -> int | None:
        """Take more text; return where in it the first object or list ends, if it does."""
        position = 0
        if self._is_escaped and text:
            self._is_escaped, position = False, 0 if text[0] == "\n" else 1
        while found := _STRUCTURE.search(text, position):
            position = found.end()
            char = found[0]
            if char == '"':
                self.in_string = not self.in_string
            elif char == "\n":
                self.in_string = False
            elif self.in_string:
                if char == "\\":
                    if position == len(text):
                        self._is_escaped = True
                    elif text[position] != "\n":
                        position += 1
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return position
        return None
