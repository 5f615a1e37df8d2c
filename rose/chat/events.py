"""What a stream of sampled tokens means: the one sequence from which every API's answer is made.

A completion's events are any number of deltas, then one `Finished`. Streamed and unstreamed answers are views of this
sequence: `rose.chat.merge.merge` (unstreamed) adds up what a stream would have sent.
"""

import json
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "tool_calls", "abort", "error"]


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the reasoning: never part of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer that the user reads."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A tool call begins. `index` counts the calls of this completion from 0; `name` is whole."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of the call's arguments, as the model wrote them."""

    index: int
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The call is over. `complete` is false when the output was cut inside it: then it must not be run."""

    index: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Finished:
    """The completion is over. `recovered` names the recovery rules used, in order, without repeats."""

    reason: FinishReason
    recovered: tuple[str, ...] = ()


def finish_reason(engine_reason: str) -> FinishReason:
    """Why a completion is over that the engine ended for `engine_reason`, as far as its text is not asked."""
    match engine_reason:
        case "stop" | "length" | "abort":
            return engine_reason
    return "error"


def is_json(text: str) -> bool:
    """Whether a call's arguments can be read."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


ChatEvent = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallDelta | ToolCallEnd | Finished
