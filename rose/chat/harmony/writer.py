"""The answer as it grows: messages and calls in, `ChatEvent`s out.

The parser says what each message is; here is decided what that makes of the whole. A message on no known channel is
held back until it is known whether another message with text follows: then it was reasoning, and otherwise it is the
content.
"""

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
from rose.chat.format import Section
from rose.chat.harmony.recovery import Recovery


class AnswerWriter:
    """Collects events until they are taken, and what has to be remembered between messages."""

    def __init__(self) -> None:
        self.section: Section = "control"
        self._events: list[ChatEvent] = []
        self._recovered: dict[Recovery, None] = {}
        # The message held back, the rule it is held for, and whether it is the one being written.
        self._held: list[str] = []
        self._held_for: Recovery | None = None
        self._held_is_open = False
        self._set_aside: list[str] = []
        # The open message or call.
        self._doubt: Recovery | None = None
        self._is_final = False
        self._arguments: list[str] = []
        self._wants_json = False
        # The answer so far.
        self._num_finals = 0
        self._num_calls = 0
        self._num_complete_calls = 0
        self._has_reasoning = False
        self._has_content = False

    def take(self) -> list[ChatEvent]:
        """The events since this was last asked."""
        events = self._events
        self._events = []
        return events

    def note(self, *rules: Recovery) -> None:
        """Record that these rules were used."""
        self._recovered.update(dict.fromkeys(rules))

    def set_aside(self, text: str) -> None:
        """Keep text that is not shown, for the case that there is nothing else."""
        self._set_aside.append(text)

    def open_message(self, channel: str) -> None:
        """Begin a message on a known channel."""
        self._open("reasoning" if channel == "analysis" else "content")
        self._is_final = channel == "final"

    def open_doubtful_message(self, doubt: Recovery) -> None:
        """Begin a message that may be reasoning or content. Its section is the likelier of the two."""
        self._open("reasoning" if doubt is Recovery.UNKNOWN_CHANNEL else "content")
        self._doubt = doubt

    def open_call(self, name: str, *, wants_json: bool) -> None:
        """Begin a tool call; `wants_json` if its arguments should be JSON."""
        self._open("tool_call")
        self._release_as_reasoning()
        self._arguments = []
        self._wants_json = wants_json
        self._events.append(ToolCallStart(self._num_calls, name))

    def text(self, text: str) -> None:
        """Add text, which must not be empty, to the open message or call."""
        if self._held and not self._held_is_open:
            self._release_as_reasoning()
        if self._doubt is not None:
            self._held.append(text)
            self._held_for = self._doubt
            self._held_is_open = True
        elif self.section == "reasoning":
            self._has_reasoning = True
            self._events.append(ReasoningDelta(text))
        elif self.section == "tool_call":
            self._arguments.append(text)
            self._events.append(ToolCallDelta(self._num_calls, text))
        else:
            if self._is_final:
                self._begin_final()
            self._has_content = True
            self._events.append(ContentDelta(text))

    def close(self, *, cut: bool) -> None:
        """End the open message or call; `cut` if the output broke off inside it."""
        if self.section == "tool_call":
            self._close_call(cut=cut)
        self.section = "control"

    def finish(self, engine_reason: str) -> None:
        """End the answer."""
        reason = finish_reason(engine_reason)
        if self._held and self._held_for is not None:
            self.note(self._held_for)
            self._has_content = True
            self._events.append(ContentDelta("".join(self._held)))
        if not (self._has_content or self._has_reasoning or self._num_calls):
            self._keep_as_text()
        if reason == "stop":
            if self._num_complete_calls:
                reason = "tool_calls"
            elif self._has_reasoning and not self._has_content:
                self.note(Recovery.ONLY_REASONING)
        self._events.append(Finished(reason, tuple(rule.value for rule in self._recovered)))

    def _open(self, section: Section) -> None:
        self.section = section
        self._doubt = None
        self._is_final = False
        self._held_is_open = False

    def _begin_final(self) -> None:
        self._is_final = False  # counted once, at its first text
        self._num_finals += 1
        if self._num_finals > 1:
            self.note(Recovery.SEVERAL_FINALS)

    def _close_call(self, *, cut: bool) -> None:
        if cut:
            self.note(Recovery.CUT_IN_TOOL_CALL)
        else:
            self._num_complete_calls += 1
            if self._wants_json and not is_json("".join(self._arguments)):
                self.note(Recovery.ARGUMENTS_NOT_JSON)
        self._events.append(ToolCallEnd(self._num_calls, complete=not cut))
        self._num_calls += 1

    def _release_as_reasoning(self) -> None:
        if self._held and self._held_for is not None:
            self.note(self._held_for)
            self._has_reasoning = True
            self._events.append(ReasoningDelta("".join(self._held)))
            self._held.clear()

    def _keep_as_text(self) -> None:
        if text := "".join(self._set_aside).strip():
            self.note(Recovery.KEPT_AS_TEXT)
            self._has_content = True
            self._events.append(ContentDelta(text))
