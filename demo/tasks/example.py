"""One training example: a conversation and the reply the model should write to it."""

import json
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from rose.chat.conversation import Conversation, Message, ReasoningEffort, ToolCall

Split = Literal["train", "held_out"]
Grade = Literal["text", "number", "json", "call"]


@dataclass(frozen=True, slots=True)
class Call:
    """A function call with its arguments, in the order in which they are written."""

    name: str
    arguments: dict[str, Any]

    @property
    def json(self) -> str:
        """The arguments as the model writes them."""
        return json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """What the assistant writes: maybe reasoning, then either content or a call."""

    content: str = ""
    reasoning: str | None = None
    call: Call | None = None

    def as_message(self, call_id: str = "call_1", keep_reasoning: bool = True) -> Message:
        """The reply as a client sends it back in a later turn."""
        calls = (ToolCall(call_id, self.call.name, self.call.json),) if self.call else ()
        return Message("assistant", self.content, self.reasoning if keep_reasoning else None, calls)


@dataclass(frozen=True, slots=True)
class Example:
    """A conversation, the right reply, and how a model's own reply is graded against it.

    grade: `text` compares the content, `number` the last number of the content, `json` the parsed content, `call` the
    function's name and parsed arguments.
    """

    category: str
    conversation: Conversation
    reply: Reply
    grade: Grade = "text"


@dataclass(slots=True)
class Draft:
    """What a task's builder is given: randomness, the effort asked for, and which side of the split to draw from."""

    rng: Random
    effort: ReasoningEffort
    split: Split
    developer: list[str] = field(default_factory=list)

    def by_effort(self, low: str | None, medium: str | None, high: str | None) -> str | None:
        """The text for this draft's effort."""
        return {"low": low, "medium": medium, "high": high}[self.effort]
