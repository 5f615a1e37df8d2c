"""The response as it grows: chat events in, stream events and the response's state out.

An unstreamed answer is the same, with the events left unread: there is one writer, so both always agree.
"""

import time
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
from rose.server.errors import ApiError
from rose.server.generation import Usage as TokenCounts
from rose.server.logprobs import LogprobSpeller, TokenLogprob
from rose.server.responses.events import Completed, Created, Failed, Incomplete, InProgress, StreamEvent
from rose.server.responses.objects import (
    IncompleteDetails,
    InputTokensDetails,
    ItemStatus,
    OutputItem,
    OutputTokensDetails,
    Response,
    ResponseError,
    Usage,
)
from rose.server.responses.open_item import Numbered, OpenCall, OpenItem, OpenMessage, OpenReasoning


class ResponseWriter:
    """Writes one response. `response` is its state by now, complete once one of the endings was asked for."""

    def __init__(self, response: Response, speller: LogprobSpeller) -> None:
        self.response = response
        self._speller = speller
        self._make = Numbered()
        self._items: list[OutputItem] = []
        self._open: OpenItem | None = None
        self._is_cut = False

    def opening(self) -> Iterator[StreamEvent]:
        """The response begins."""
        yield self._make(Created, response=self.response)
        yield self._make(InProgress, response=self.response)

    def events(self, delta: CompletionDelta) -> Iterator[StreamEvent]:
        """What a delta brings. The response's end is not told here, since its usage is known only afterwards."""
        logprobs = [self._speller.spell(entry) for entry in delta.logprobs]
        for event in delta.events:
            yield from self._take(event, logprobs)

    def finish(self, counts: TokenCounts) -> StreamEvent:
        """The generation came to its end."""
        if self._is_cut:
            details = IncompleteDetails("max_output_tokens")
            self._settle("incomplete", usage=usage(counts), incomplete_details=details)
            return self._make(Incomplete, response=self.response)
        self._settle("completed", usage=usage(counts), completed_at=int(time.time()))
        return self._make(Completed, response=self.response)

    def fail(self, error: ApiError, counts: TokenCounts) -> Iterator[StreamEvent]:
        """The generation failed."""
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        yield from self._close("incomplete")
        self._settle("failed", usage=usage(counts), error=ResponseError(code, error.message))
        yield self._make(Failed, response=self.response)

    def cancel(self, counts: TokenCounts) -> Iterator[StreamEvent]:
        """The generation was cancelled. The API has no event of its own for that."""
        yield from self._close("incomplete")
        self._settle("cancelled", usage=usage(counts))
        yield self._make(Failed, response=self.response)

    def _take(self, event: ChatEvent, logprobs: list[TokenLogprob]) -> Iterator[StreamEvent]:
        match event, self._open:
            case ContentDelta(text), OpenMessage() as message:
                yield message.append(text, logprobs.copy())
                logprobs.clear()
            case ReasoningDelta(text), OpenReasoning() as reasoning:
                yield reasoning.append(text)
            case ContentDelta(), _:
                yield from self._begin(OpenMessage(len(self._items) + self._num_open(), self._make))
                yield from self._take(event, logprobs)
            case ReasoningDelta(), _:
                yield from self._begin(OpenReasoning(len(self._items) + self._num_open(), self._make))
                yield from self._take(event, logprobs)
            case ToolCallStart(_, name), _:
                yield from self._begin(OpenCall(len(self._items) + self._num_open(), self._make, name))
            case ToolCallDelta(_, arguments), OpenCall() as call:
                yield call.append(arguments)
            case ToolCallEnd(_, complete), _:
                yield from self._close("completed" if complete else "incomplete")
            case Finished(reason), _:
                self._is_cut = reason == "length"
                if isinstance(self._open, OpenMessage):
                    self._open.add_logprobs(logprobs)
                yield from self._close("incomplete" if self._is_cut else "completed")

    def _num_open(self) -> int:
        return 0 if self._open is None else 1

    def _begin(self, item: OpenItem) -> Iterator[StreamEvent]:
        yield from self._close("completed")
        self._open = item
        yield from item.opening()

    def _close(self, status: ItemStatus) -> Iterator[StreamEvent]:
        if self._open is not None:
            yield from self._open.closing(status)
            self._items.append(self._open.item)
            self._open = None

    def _settle(self, status: str, **fields: Any) -> None:
        self.response = msgspec.structs.replace(self.response, status=status, output=self._items, **fields)


def usage(counts: TokenCounts) -> Usage:
    """Token counts as this API writes them."""
    return Usage(
        input_tokens=counts.num_prompt_tokens,
        input_tokens_details=InputTokensDetails(counts.num_cached_tokens),
        output_tokens=counts.num_completion_tokens,
        output_tokens_details=OutputTokensDetails(counts.num_reasoning_tokens),
        total_tokens=counts.num_prompt_tokens + counts.num_completion_tokens,
    )
