"""The message as it grows: chat events in, stream events and blocks out.

An unstreamed answer is the same, with the events left unread.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from rose.chat.events import (
    ChatEvent,
    ContentDelta,
    Finished,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from rose.server.completion import CompletionDelta
from rose.server.generation import Usage as TokenCounts
from rose.server.ids import new_id
from rose.server.messages.objects import (
    ContentBlock,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    Delta,
    InputJsonDelta,
    Message,
    MessageDelta,
    MessageEnd,
    MessageStart,
    MessageStop,
    Ping,
    SignatureDelta,
    StopReason,
    StreamEvent,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
    Usage,
)

SIGNATURE = "rose"


class MessageWriter:
    """Writes one message. `message` is its state by now, complete after `finish`.

    shows_thinking: whether the reasoning is part of it at all.
    """

    def __init__(self, model: str, *, num_prompt_tokens: int, shows_thinking: bool) -> None:
        self.message = Message(
            id=new_id("msg"), model=model, usage=Usage(input_tokens=num_prompt_tokens, output_tokens=0)
        )
        self._shows_thinking = shows_thinking
        self._blocks: list[ContentBlock] = []
        self._open: ContentBlock | None = None
        self._texts: list[str] = []
        self._finished: Finished | None = None

    def opening(self) -> Iterator[StreamEvent]:
        """The message begins."""
        yield MessageStart(message=self.message)
        yield Ping()

    def events(self, delta: CompletionDelta) -> Iterator[StreamEvent]:
        """What a delta brings."""
        for event in delta.events:
            yield from self._take(event)

    def finish(self, counts: TokenCounts, *, stop_string: str | None, max_tokens: int) -> Iterator[StreamEvent]:
        """The generation came to its end."""
        end = MessageEnd(stop_reason=self._stop_reason(counts, stop_string, max_tokens), stop_sequence=stop_string)
        self.message = msgspec.structs.replace(
            self.message,
            content=self._blocks,
            stop_reason=end.stop_reason,
            stop_sequence=end.stop_sequence,
            usage=usage(counts),
        )
        yield MessageDelta(delta=end, usage=self.message.usage)
        yield MessageStop()

    def _take(self, event: ChatEvent) -> Iterator[StreamEvent]:
        match event:
            case ContentDelta(text):
                if not isinstance(self._open, TextBlock):
                    yield from self._begin(TextBlock())
                yield self._grow(text, TextDelta(text=text))
            case ReasoningDelta(text) if self._shows_thinking:
                if not isinstance(self._open, ThinkingBlock):
                    yield from self._begin(ThinkingBlock())
                yield self._grow(text, ThinkingDelta(thinking=text))
            case ToolCallStart(_, name):
                yield from self._begin(ToolUseBlock(id=new_id("toolu"), name=name))
            case ToolCallDelta(_, arguments):
                yield self._grow(arguments, InputJsonDelta(partial_json=arguments))
            case ToolCallEnd(_, complete):
                yield from self._close(complete=complete)
            case Finished():
                yield from self._close()
                self._finished = event

    def _begin(self, block: ContentBlock) -> Iterator[StreamEvent]:
        yield from self._close()
        self._open = block
        yield ContentBlockStart(index=len(self._blocks), content_block=block)

    def _grow(self, text: str, delta: Delta) -> StreamEvent:
        self._texts.append(text)
        return ContentBlockDelta(index=len(self._blocks), delta=delta)

    def _close(self, *, complete: bool = True) -> Iterator[StreamEvent]:
        block, text = self._open, "".join(self._texts)
        if block is None:
            return
        self._open, self._texts = None, []
        index = len(self._blocks)
        match block:
            case ThinkingBlock():
                yield ContentBlockDelta(index=index, delta=SignatureDelta(signature=SIGNATURE))
                self._blocks.append(ThinkingBlock(thinking=text, signature=SIGNATURE))
            case TextBlock():
                self._blocks.append(TextBlock(text=text))
            case ToolUseBlock() if complete:
                self._blocks.append(msgspec.structs.replace(block, input=_arguments(text)))
            case ToolUseBlock():  # cut off: it must not be run
                self._blocks.append(TextBlock(text=text))
        yield ContentBlockStop(index=index)

    def _stop_reason(self, counts: TokenCounts, stop_string: str | None, max_tokens: int) -> StopReason:
        reason = self._finished.reason if self._finished else "stop"
        if reason == "tool_calls":
            return "tool_use"
        if reason == "length":
            return "max_tokens" if counts.num_completion_tokens >= max_tokens else "model_context_window_exceeded"
        return "end_turn" if stop_string is None else "stop_sequence"


def usage(counts: TokenCounts) -> Usage:
    """Token counts as this API writes them."""
    return Usage(
        input_tokens=counts.num_prompt_tokens - counts.num_cached_tokens,
        cache_read_input_tokens=counts.num_cached_tokens,
        output_tokens=counts.num_completion_tokens,
    )


def _arguments(text: str) -> dict[str, Any]:
    """A call's arguments as an object; what is none goes under the key that Anthropic's documentation gives it."""
    try:
        parsed = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {"INVALID_JSON": text}
