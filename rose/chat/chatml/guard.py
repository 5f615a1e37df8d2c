"""Keeping clients' texts apart from the marks that a template writes around them.

A template makes one string of both. So before it runs, a guard character that occurs nowhere else is set into every
place where a client's text holds a control token's name, or could become part of one together with what stands beside
it. Afterwards the string is cut at the names that are whole, and the guards are left out.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from rose.errors import RequestError

# Noncharacters of Unicode: for a program's own use inside, and no part of any text.
_GUARDS = tuple(map(chr, range(0xFDD0, 0xFDF0)))

# Keys that templates look for in tools' schemas. Like those of messages they are no client's words.
_SCHEMA_KEYS = frozenset(
    [
        *("$defs", "$ref", "additionalProperties", "allOf", "anyOf", "const", "default", "description", "enum"),
        *("examples", "format", "items", "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum"),
        *("nullable", "oneOf", "pattern", "properties", "required", "title", "type", "uniqueItems"),
    ]
)


class Guard:
    """Guards against the names of one tokenizer's control tokens."""

    def __init__(self, names: Iterable[str]) -> None:
        # A name of one character cannot be broken up; `splitting` leaves it text everywhere.
        self._names = [name for name in names if len(name) > 1]
        self._max_chars = max(map(len, self._names), default=0)
        self._begins = frozenset(name[:n] for name in self._names for n in range(1, len(name)))
        self._ends = frozenset(name[n:] for name in self._names for n in range(1, len(name)))
        alternatives = "|".join(map(re.escape, self._names)) or "(?!)"
        self._anywhere = re.compile(alternatives)
        self._at_each = re.compile(f"(?={alternatives}).", re.DOTALL)

    @staticmethod
    def choose(*values: Any) -> str:
        """A character for the guard that occurs in none of these values, which are as JSON has them."""
        texts = [text for value in values for text in _texts(value)]
        for guard in _GUARDS:
            if not any(guard in text for text in texts):
                return guard
        raise RequestError("the request holds all 32 noncharacters from U+FDD0, which no text needs", param="messages")

    def protect(self, value: Any, guard: str) -> Any:
        """A value as JSON has it, with guards in all its texts."""
        if isinstance(value, str):
            return self._protect(value, guard)
        if isinstance(value, Mapping):
            return {
                key if key in _SCHEMA_KEYS else self.protect(key, guard): self.protect(item, guard)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.protect(item, guard) for item in value]
        return value

    def _protect(self, text: str, guard: str) -> str:
        if not text:
            return text
        places = {found.end() for found in self._at_each.finditer(text)} if self._anywhere.search(text) else set()
        for n in range(1, min(self._max_chars, len(text) + 1)):
            if text[:n] in self._ends:
                places.add(0)
            if text[-n:] in self._begins:
                places.add(len(text) - n + 1)
        if len(text) < self._max_chars and any(text in name for name in self._names):
            places.add(0)
        if not places:
            return text
        edges = [0, *sorted(places), len(text)]
        return guard.join(text[begin:end] for begin, end in pairwise(edges))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
