"""What becomes of a body's fields that its API's schema does not name.

Three kinds: harmless ones are accepted; those that would change the answer and cannot be honoured are refused, unless
they ask for what happens anyway; those that nobody knows are ignored and reported. Each API has its own lists.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rose.errors import RequestError
from rose.server.errors import unsupported

IGNORED_FIELDS_HEADER = "x-rose-ignored-fields"
_MAX_NAMED = 32
_UNSAFE_IN_HEADER = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True, slots=True)
class FieldKinds:
    """The fields of one API beside those that it honours.

    harmless: they change nothing about the answer, such as labels, billing, caching, storage, or a hint that costs
    nothing to leave. unsupported: each with the values that ask for nothing beyond what
    happens anyway. A field that is null is as one left out, whatever its name.
    """

    harmless: frozenset[str]
    unsupported: Mapping[str, tuple[Any, ...]]

    def review(self, extra: Mapping[str, Any], *, strict: bool) -> list[str]:
        """The names of the fields that are ignored, in the body's order.

        Raises `RequestError` for a field that is meaningful and unsupported, and under `strict` for an unknown one.
        """
        ignored = []
        for name, value in extra.items():
            if value is None:
                continue
            if name in self.unsupported:
                if not any(value == harmless for harmless in self.unsupported[name]):
                    raise unsupported(name, f"{name} is not supported")
            elif name not in self.harmless:
                ignored.append(name)
        if ignored and strict:
            raise RequestError(
                f"unknown fields: {', '.join(ignored[:_MAX_NAMED])}", param=ignored[0], code="unknown_parameter"
            )
        return ignored


def ignored_fields_header(ignored: Iterable[str]) -> dict[str, str]:
    """The response header that names ignored fields; no header without any. Clients' text is made safe for it."""
    names = [_UNSAFE_IN_HEADER.sub("_", name)[:64] for name in ignored][:_MAX_NAMED]
    return {IGNORED_FIELDS_HEADER: ", ".join(names)} if names else {}
