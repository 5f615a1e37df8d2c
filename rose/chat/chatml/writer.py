"""The answer as it grows: text and calls in, `ChatEvent`s out.

Line feeds at the edges of reasoning, and in front of a call, belong to the markup. They are held back until it is known
what follows: with more text, or at the end of the turn, they are text.
"""

from typing import Literal

from rose.chat.chatml.recovery import Recovery
from rose.chat.events import (
    ChatEvent,
    ContentDelta,
    Finished,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    finish_reason,
    is_json,
)

TextKind = Literal["reasoning", "content"]


class AnswerWriter:
    """Collects events until they are taken, and what has to be remembered of the answer."""

    def __init__(self) -> None:
        self._events: list[ChatEvent] = []
        self._recovered: dict[Recovery, None] = {}
        self._num_to_skip = 0
        self._held = ""
        self._set_aside: list[str] = []
        self._arguments: list[str] = []
        self._written: set[str] = set()
        self._num_calls = 0
        self._num_complete_calls = 0

    def take(self) -> list[ChatEvent]:
        """The events since this was last asked."""
        events = self._events
        self._events = []
        return events

    def note(self, rule: Recovery) -> None:
        """Record that a rule was used."""
        self._recovered[rule] = None

    def set_aside(self, text: str) -> None:
        """Keep text that is not shown, for the case that there is nothing else."""
        self._set_aside.append(text)

    def skip_line_feeds(self, num: int) -> None:
        """Drop up to `num` line feeds if they come next."""
        self._num_to_skip = num

    def text(self, kind: TextKind, text: str) -> None:
        """Add text."""
        if self._num_to_skip:
            rest = text.lstrip("\n")
            num_skipped = min(len(text) - len(rest), self._num_to_skip)
            self._num_to_skip = self._num_to_skip - num_skipped if num_skipped == len(text) else 0
            text = text[num_skipped:]
        shown = text.rstrip("\n")
        if shown:
            self._show(kind, self._held + shown)
            self._held = ""
        self._held += text[len(shown) :]

    def end_text(self, kind: TextKind, *, before_tag: bool) -> str:
        """What follows is no more text of this kind; before_tag: the line feeds at its end are the markup's.

        Return those line feeds.
        """
        held, self._held = self._held, ""
        self._num_to_skip = 0
        if not before_tag and held:
            self._show(kind, held)
        return held if before_tag else ""

    def open_call(self, name: str) -> None:
        """Begin a tool call."""
        self._arguments = []
        self._events.append(ToolCallStart(self._num_calls, name))

    def arguments(self, text: str) -> None:
        """Add to the arguments of the open call."""
        if text:
            self._arguments.append(text)
            self._events.append(ToolCallDelta(self._num_calls, text))

    def close_call(self, *, cut: bool) -> None:
        """End the open call; `cut` if the output broke off inside it."""
        if cut:
            self.note(Recovery.CUT_IN_TOOL_CALL)
        else:
            self._num_complete_calls += 1
            if not is_json("".join(self._arguments)):
                self.note(Recovery.ARGUMENTS_NOT_JSON)
        self._events.append(ToolCallEnd(self._num_calls, complete=not cut))
        self._num_calls += 1

    def finish(self, engine_reason: str) -> None:
        """End the answer."""
        reason = finish_reason(engine_reason)
        if not (self._written or self._num_calls) and (text := "".join(self._set_aside).strip()):
            self.note(Recovery.KEPT_AS_TEXT)
            self._show("content", text)
        if reason == "stop":
            if self._num_complete_calls:
                reason = "tool_calls"
            elif self._written == {"reasoning"}:
                self.note(Recovery.ONLY_REASONING)
        self._events.append(Finished(reason, tuple(rule.value for rule in self._recovered)))

    def _show(self, kind: TextKind, text: str) -> None:
        self._written.add(kind)
        self._events.append(ReasoningDelta(text) if kind == "reasoning" else ContentDelta(text))
