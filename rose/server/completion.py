"""One completion, from engine outputs to what a client may see. No I/O, so it is tested token by token."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rose.chat.events import ChatEvent, ContentDelta, Finished, ReasoningDelta, ToolCallDelta
from rose.chat.format import StreamParser
from rose.engine.messages import RequestOutput, TokenLogprobs
from rose.server.stop_strings import StopScanner


@dataclass(frozen=True, slots=True)
class ContentLogprob:
    """The log-probabilities at one content token."""

    token_id: int
    logprobs: TokenLogprobs


@dataclass(frozen=True, slots=True)
class CompletionDelta:
    """What became known of one completion.

    events: never empty; the completion's last one is `Finished`. token_ids: all ids sampled since the delta before,
    those of headers too. logprobs: of the content tokens whose text these events brought to light.
    """

    index: int
    events: Sequence[ChatEvent]
    token_ids: Sequence[int]
    logprobs: Sequence[ContentLogprob] = ()


@dataclass(slots=True)
class _Pending:
    """Sampled, and not yet told to the client."""

    token_ids: list[int] = field(default_factory=list)
    # With each entry, where its token's text begins in the content; what begins after a cut is never told.
    logprobs: deque[tuple[int, ContentLogprob]] = field(default_factory=deque)


class Completion:
    """Reads the engine's outputs of one completion.

    Stop strings are looked for in content only, never in reasoning or in a tool's arguments. Text that may be the
    beginning of one is held back until that is clear, and always told before any event of another kind.

    own_stop_token_ids: stop ids that the client itself asked for; the one that ended the request is not shown.
    """

    def __init__(
        self, index: int, parser: StreamParser, stop: Sequence[str] = (), own_stop_token_ids: Sequence[int] = ()
    ) -> None:
        self.index = index
        self.num_tokens = 0
        self.num_reasoning_tokens = 0
        self.is_finished = False
        self._parser = parser
        self._scanner = StopScanner(stop)
        self._own_stop_token_ids = frozenset(own_stop_token_ids)
        self._pending = _Pending()
        self._num_content_chars_parsed = 0
        self._num_content_chars_shown = 0

    @property
    def stop_string(self) -> str | None:
        """The stop string that was found, if one was."""
        return self._scanner.found

    @property
    def found_stop_string(self) -> bool:
        """Whether a stop string ended the completion."""
        return self._scanner.found is not None

    def push(self, output: RequestOutput) -> CompletionDelta | None:
        """Take an output; None if it changed nothing that a client can see, or came after the end."""
        if self.is_finished:
            return None
        events: list[ChatEvent] = []
        for position, token_id in enumerate(output.token_ids):
            is_last = position == len(output.token_ids) - 1
            self.num_tokens += 1
            self._pending.token_ids.append(token_id)
            if is_last and output.finish_reason == "stop" and token_id in self._own_stop_token_ids:
                break
            self._take(token_id, output.logprobs[position] if output.logprobs else None, events)
            if self.found_stop_string:
                break
        if self.found_stop_string:
            events.append(self._parser.finish("stop")[-1])
        elif output.finish_reason is not None:
            self._finish(output.finish_reason, events)
        if not events:
            return None
        self.is_finished = isinstance(events[-1], Finished)
        return self._delta(events)

    def _take(self, token_id: int, logprobs: TokenLogprobs | None, events: list[ChatEvent]) -> None:
        start = self._num_content_chars_parsed
        parsed = self._parser.push(token_id)
        section = self._parser.section
        if section == "reasoning":
            self.num_reasoning_tokens += 1
        elif section == "content" and logprobs is not None:
            self._pending.logprobs.append((start, ContentLogprob(token_id, logprobs)))
        self._show(parsed, events)

    def _finish(self, reason: str, events: list[ChatEvent]) -> None:
        parsed = self._parser.finish(reason)
        self._show(parsed, events)
        if self.found_stop_string:  # in text that the parser had held back to the end
            events.append(_ended_by_stop_string(parsed[-1]))

    def _show(self, parsed: Sequence[ChatEvent], events: list[ChatEvent]) -> None:
        """Append what may be shown of the parser's events, text of one kind joined; stop at a stop string."""
        for event in parsed:
            match event:
                case ContentDelta(text):
                    self._num_content_chars_parsed += len(text)
                    shown, _ = self._scanner.push(text)
                    self._show_content(shown, events)
                    if self.found_stop_string:
                        return
                case _:
                    self._show_content(self._scanner.flush(), events)
                    _append_joined(event, events)

    def _show_content(self, text: str, events: list[ChatEvent]) -> None:
        if text:
            self._num_content_chars_shown += len(text)
            _append_joined(ContentDelta(text), events)

    def _delta(self, events: list[ChatEvent]) -> CompletionDelta:
        pending, logprobs = self._pending, []
        shows_all = self.is_finished and not self.found_stop_string
        while pending.logprobs and (shows_all or pending.logprobs[0][0] < self._num_content_chars_shown):
            logprobs.append(pending.logprobs.popleft()[1])
        token_ids, pending.token_ids = pending.token_ids, []
        return CompletionDelta(self.index, events, token_ids, logprobs)


def _ended_by_stop_string(last: ChatEvent) -> ChatEvent:
    """The end of a completion whose limit was reached only after its stop string."""
    return Finished("stop", last.recovered) if isinstance(last, Finished) and last.reason == "length" else last


def _append_joined(event: ChatEvent, events: list[ChatEvent]) -> None:
    """Append an event, or lengthen the last one if both are text of one kind: one chunk for one step's tokens."""
    last = events[-1] if events else None
    match last, event:
        case ContentDelta(before), ContentDelta(text):
            events[-1] = ContentDelta(before + text)
        case ReasoningDelta(before), ReasoningDelta(text):
            events[-1] = ReasoningDelta(before + text)
        case ToolCallDelta(index, before), ToolCallDelta(next_index, arguments) if index == next_index:
            events[-1] = ToolCallDelta(index, before + arguments)
        case _:
            events.append(event)
