"""What a client may demand of an answer: the form of its text, and which tools are called. In no vendor's wire format.

`param` is the client's own name of the field, for the refusal of a demand that cannot be enforced.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """JSON that a schema describes, or any JSON object without one.

    name and description: what the model is told of the schema. It is told of it only under a name.
    """

    schema: Mapping[str, Any] | None = None
    name: str | None = None
    description: str | None = None
    param: str = "response_format"


def told_format(wanted: JsonFormat) -> str:
    """The schema of the answer, as gpt-oss was taught to be told of it, and in a way that others read too."""
    lines = [f"# Response Formats\n\n## {wanted.name}\n"]
    if wanted.description:
        lines += [*(f"// {line}" for line in wanted.description.split("\n")), ""]
    schema = json.dumps(wanted.schema or {"type": "object"}, ensure_ascii=False, separators=(",", ":"))
    return "\n".join([*lines, schema])


@dataclass(frozen=True, slots=True)
class RegexFormat:
    """Text that a regular expression matches as a whole. Rust's syntax: no look-around, no back-references."""

    pattern: str
    param: str = "structured_outputs"


@dataclass(frozen=True, slots=True)
class ChoiceFormat:
    """One of some texts, to the letter."""

    choices: tuple[str, ...]
    param: str = "structured_outputs"


@dataclass(frozen=True, slots=True)
class GrammarFormat:
    """Text of a context-free grammar, in llguidance's Lark or llama.cpp's GBNF."""

    grammar: str
    param: str = "structured_outputs"


AnswerFormat = JsonFormat | RegexFormat | ChoiceFormat | GrammarFormat


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools may be called, and whether one must be.

    mode: `auto` leaves it to the model; `required` makes the turn end in a call. names: the only tools that may be
    called, or None for all of the conversation's.
    """

    mode: Literal["auto", "required"] = "auto"
    names: tuple[str, ...] | None = None
