"""The response as it grows: chat events in, stream events and the response's state out.

An unstreamed answer is the same, with the events left unread: there is one writer, so both always agree.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
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
from rose.server.builtin_tools.result import ToolResult
from rose.server.completion import CompletionDelta
from rose.server.errors import ApiError
from rose.server.generation import Usage as TokenCounts
from rose.server.ids import new_id
from rose.server.logprobs import LogprobSpeller, TokenLogprob
from rose.server.responses.events import Completed, Created, Failed, Incomplete, InProgress, StreamEvent
from rose.server.responses.objects import (
    CodeInterpreterCallItem,
    IncompleteDetails,
    InputTokensDetails,
    ItemStatus,
    OutputItem,
    OutputTokensDetails,
    Response,
    ResponseError,
    Usage,
    WebSearchCallItem,
)
from rose.server.responses.open_builtin import OpenBuiltin, OpenCodeRun, OpenSearch, open_builtin
from rose.server.responses.open_item import (
    Numbered,
    OpenCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
    OpenSummary,
)


class ResponseWriter:
    """Writes one response. `response` is its state by now, complete once one of the endings was asked for.

    is_builtin: whether a call is a built-in tool's, by its name. include: what the client wants to see of its result.
    reasoning_as_summary: the reasoning goes into summaries. namespaced: the namespaces and names of functions by the
    names that the model has for them.
    """

    def __init__(
        self,
        response: Response,
        speller: LogprobSpeller,
        *,
        is_builtin: Callable[[str], bool],
        include: Collection[str] = (),
        reasoning_as_summary: bool = False,
        namespaced: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        self.response = response
        self._speller = speller
        self._is_builtin = is_builtin
        self._include = include
        self._namespaced = namespaced or {}
        self._reasoning = OpenSummary if reasoning_as_summary else OpenReasoning
        self._container_id = new_id("cntr")
        self._make = Numbered()
        self._items: list[OutputItem] = []
        self._open: OpenItem | OpenBuiltin | None = None
        self._is_cut = False

    @property
    def kept_items(self) -> list[OutputItem]:
        """The items that are done, with what the client does not see of them."""
        return self._items

    @property
    def kept_response(self) -> Response:
        """The response likewise, to be stored."""
        return msgspec.structs.replace(self.response, output=self._items) if self.response.output else self.response

    @property
    def pending_call(self) -> tuple[str, str] | None:
        """The recipient and the arguments of a call that waits to be run, if the generation ended at one."""
        opened = self._open
        if isinstance(opened, (OpenCodeRun, OpenSearch)) and opened.is_ready and not self._is_cut:
            return opened.recipient, opened.arguments
        return None

    def running(self) -> Iterator[StreamEvent]:
        """The pending call is run now."""
        assert isinstance(self._open, (OpenCodeRun, OpenSearch))
        yield from self._open.running()

    def take_result(self, result: ToolResult) -> Iterator[StreamEvent]:
        """The pending call has been run."""
        assert isinstance(self._open, (OpenCodeRun, OpenSearch))
        yield from self._open.take(result)
        yield from self._close("completed")

    def leave_call(self) -> Iterator[StreamEvent]:
        """The pending call will not be run."""
        yield from self._close("incomplete")

    def cut(self) -> None:
        """There is no room to go on: the response ends as one that reached its limit."""
        self._is_cut = True

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
            case ReasoningDelta(text), (OpenReasoning() | OpenSummary()) as reasoning:
                yield reasoning.append(text)
            case ContentDelta(), _:
                yield from self._begin(OpenMessage(len(self._items) + self._num_open(), self._make))
                yield from self._take(event, logprobs)
            case ReasoningDelta(), _:
                yield from self._begin(self._reasoning(len(self._items) + self._num_open(), self._make))
                yield from self._take(event, logprobs)
            case ToolCallStart(_, name), _ if self._is_builtin(name):
                index = len(self._items) + self._num_open()
                options: dict[str, Any] = {"include": self._include, "container_id": self._container_id}
                yield from self._begin(open_builtin(name, index, self._make, **options))
            case ToolCallDelta(_, arguments), (OpenCodeRun() | OpenSearch()) as builtin:
                yield from builtin.append(arguments)
            case ToolCallEnd(_, complete=True), (OpenCodeRun() | OpenSearch()) as builtin:
                builtin.is_ready = True
            case ToolCallStart(_, name), _:
                namespace, name = self._namespaced.get(name, (None, name))
                yield from self._begin(OpenCall(len(self._items) + self._num_open(), self._make, name, namespace))
            case ToolCallDelta(_, arguments), OpenCall() as call:
                yield call.append(arguments)
            case ToolCallEnd(_, complete), _:
                yield from self._close("completed" if complete else "incomplete")
            case Finished(reason), _:
                self._is_cut = reason == "length"
                if isinstance(self._open, OpenMessage):
                    self._open.add_logprobs(logprobs)
                if self.pending_call is None:
                    yield from self._close("incomplete" if self._is_cut else "completed")

    def _num_open(self) -> int:
        return 0 if self._open is None else 1

    def _begin(self, item: OpenItem | OpenBuiltin) -> Iterator[StreamEvent]:
        yield from self._close("completed" if self.pending_call is None else "incomplete")
        self._open = item
        yield from item.opening()

    def _close(self, status: ItemStatus) -> Iterator[StreamEvent]:
        if self._open is not None:
            yield from self._open.closing(status)
            self._items.append(self._open.item)
            self._open = None

    def _settle(self, status: str, **fields: Any) -> None:
        shown = [
            item.shown(self._include) if isinstance(item, (CodeInterpreterCallItem, WebSearchCallItem)) else item
            for item in self._items
        ]
        self.response = msgspec.structs.replace(self.response, status=status, output=shown, **fields)


def usage(counts: TokenCounts) -> Usage:
    """Token counts as this API writes them."""
    return Usage(
        input_tokens=counts.num_prompt_tokens,
        input_tokens_details=InputTokensDetails(counts.num_cached_tokens),
        output_tokens=counts.num_completion_tokens,
        output_tokens_details=OutputTokensDetails(counts.num_reasoning_tokens),
        total_tokens=counts.num_prompt_tokens + counts.num_completion_tokens,
    )
