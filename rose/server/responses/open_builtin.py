"""A call of a built-in tool as an item that is being written: the call, then its run, then its result."""

from collections.abc import Collection, Iterator
from typing import Any

from rose.server.builtin_tools import code_interpreter
from rose.server.builtin_tools.result import ToolResult
from rose.server.responses.builtin_items import to_action
from rose.server.responses.events import (
    CodeCompleted,
    CodeDelta,
    CodeDone,
    CodeInProgress,
    CodeInterpreting,
    OutputItemAdded,
    OutputItemDone,
    SearchCompleted,
    SearchInProgress,
    SearchSearching,
    StreamEvent,
)
from rose.server.responses.objects import (
    CodeInterpreterCallItem,
    ItemStatus,
    Logs,
    ResultText,
    WebSearchCallItem,
)
from rose.server.responses.open_item import Item, Numbered


class _OpenBuiltin(Item):
    """is_ready: the call is whole, and waits to be run. include: what the client wants to see of the result."""

    def __init__(
        self, prefix: str, output_index: int, make: Numbered, recipient: str, include: Collection[str]
    ) -> None:
        super().__init__(prefix, output_index, make)
        self.recipient = recipient
        self.is_ready = False
        self._include = include
        self._result: ToolResult | None = None

    @property
    def arguments(self) -> str:
        """What was written by now."""
        return "".join(self._texts)

    def _event(self, kind: Any) -> StreamEvent:
        event: StreamEvent = self._make(kind, **self._place)
        return event


class OpenCodeRun(_OpenBuiltin):
    """A code interpreter item."""

    def __init__(
        self, output_index: int, make: Numbered, recipient: str, include: Collection[str], container_id: str
    ) -> None:
        super().__init__("ci", output_index, make, recipient, include)
        self._container_id = container_id

    @property
    def item(self) -> CodeInterpreterCallItem:
        """The item as it is by now, with the outputs."""
        return CodeInterpreterCallItem(
            id=self._id,
            status="failed" if self._result is not None and self._result.failed else self._status,
            code=self.arguments,
            container_id=self._container_id,
            outputs=None if self._result is None else [Logs(logs=self._result.text)],
        )

    def opening(self) -> Iterator[StreamEvent]:
        """It begins."""
        yield self._make(OutputItemAdded, item=self.item, **self._of_item)
        yield self._event(CodeInProgress)

    def append(self, text: str) -> Iterator[StreamEvent]:
        """It grows."""
        self._texts.append(text)
        yield self._make(CodeDelta, delta=text, **self._place)

    def running(self) -> Iterator[StreamEvent]:
        """It is run now."""
        yield self._make(CodeDone, code=self.arguments, **self._place)
        yield self._event(CodeInterpreting)

    def take(self, result: ToolResult) -> Iterator[StreamEvent]:
        """It has been run."""
        self._result = result
        yield self._event(CodeCompleted)

    def closing(self, status: ItemStatus) -> Iterator[StreamEvent]:
        """It ends."""
        self._status = status
        yield self._make(OutputItemDone, item=self.item.shown(self._include), **self._of_item)


class OpenSearch(_OpenBuiltin):
    """A web search item. Its arguments come as an `action`, so that it can be told only when they are whole."""

    def __init__(self, output_index: int, make: Numbered, recipient: str, include: Collection[str]) -> None:
        super().__init__("ws", output_index, make, recipient, include)
        self._is_told = False

    @property
    def item(self) -> WebSearchCallItem:
        """The item as it is by now, with the results, and the call as it was written."""
        return WebSearchCallItem(
            id=self._id,
            status="failed" if self._result is not None and self._result.failed else self._status,
            action=to_action(self.recipient, self.arguments, self._result),
            results=[] if self._result is None else [ResultText(text=self._result.text)],
            recipient=self.recipient,
            arguments=self.arguments,
        )

    def opening(self) -> Iterator[StreamEvent]:
        """It begins, unseen."""
        yield from ()

    def append(self, text: str) -> Iterator[StreamEvent]:
        """It grows, unseen."""
        self._texts.append(text)
        yield from ()

    def running(self) -> Iterator[StreamEvent]:
        """It is run now."""
        yield self._told()
        yield self._event(SearchInProgress)
        yield self._event(SearchSearching)

    def take(self, result: ToolResult) -> Iterator[StreamEvent]:
        """It has been run."""
        self._result = result
        yield self._event(SearchCompleted)

    def closing(self, status: ItemStatus) -> Iterator[StreamEvent]:
        """It ends."""
        if not self._is_told:
            yield self._told()
        self._status = status
        yield self._make(OutputItemDone, item=self.item.shown(self._include), **self._of_item)

    def _told(self) -> StreamEvent:
        self._is_told = True
        return self._make(OutputItemAdded, item=self.item.shown(()), **self._of_item)


OpenBuiltin = OpenCodeRun | OpenSearch


def open_builtin(
    recipient: str, output_index: int, make: Numbered, *, include: Collection[str], container_id: str
) -> OpenBuiltin:
    """The item for a call of a built-in tool."""
    if recipient == code_interpreter.NAME:
        return OpenCodeRun(output_index, make, recipient, include, container_id)
    return OpenSearch(output_index, make, recipient, include)
