"""The unstreamed view of an answer: what its events add up to."""

from collections.abc import Iterable
from dataclasses import dataclass

from rose.chat.events import (
    ChatEvent,
    ContentDelta,
    Finished,
    FinishReason,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)


@dataclass(frozen=True, slots=True)
class MergedToolCall:
    """A complete tool call, its arguments as the model wrote them."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class MergedAnswer:
    """A whole answer. `recovered` is that of `Finished`."""

    reasoning: str
    content: str
    tool_calls: tuple[MergedToolCall, ...]
    finish_reason: FinishReason
    recovered: tuple[str, ...]


def merge(events: Iterable[ChatEvent]) -> MergedAnswer:
    """Add up the events of a completion, which end in `Finished`.

    A tool call that was cut off must not be run: the text of its arguments goes to the content.
    """
    reasoning: list[str] = []
    content: list[str] = []
    calls: list[MergedToolCall] = []
    name = ""
    arguments: list[str] = []
    for event in events:
        match event:
            case ReasoningDelta(text):
                reasoning.append(text)
            case ContentDelta(text):
                content.append(text)
            case ToolCallStart():
                name, arguments = event.name, []
            case ToolCallDelta():
                arguments.append(event.arguments)
            case ToolCallEnd():
                if event.complete:
                    calls.append(MergedToolCall(name, "".join(arguments)))
                else:
                    content.extend(arguments)
            case Finished():
                return MergedAnswer("".join(reasoning), "".join(content), tuple(calls), event.reason, event.recovered)
    raise ValueError("the events of a completion must end in Finished")
