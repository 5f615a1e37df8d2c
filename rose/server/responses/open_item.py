"""The item of the output that is being written, of each kind: which events tell of its beginning, growth and end.

Events are built by `Numbered`, which gives each its sequence number.
"""

from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

import msgspec

from rose.server.ids import new_id
from rose.server.logprobs import TokenLogprob
from rose.server.responses.events import (
    ArgumentsDelta,
    ArgumentsDone,
    ContentPartAdded,
    ContentPartDone,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    StreamEvent,
    SummaryPartAdded,
    SummaryPartDone,
    SummaryTextDelta,
    SummaryTextDone,
)
from rose.server.responses.objects import (
    FunctionCallItem,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    SummaryText,
)

Event = TypeVar("Event", bound=StreamEvent)


class Numbered:
    """Makes events with rising sequence numbers."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, kind: type[Event], **fields: Any) -> Event:
        """The next event."""
        event = kind(sequence_number=self._next, **fields)
        self._next += 1
        return event


class OpenItem(Protocol):
    """An item that has begun and not ended."""

    def opening(self) -> Iterator[StreamEvent]:
        """It begins."""
        ...

    def closing(self, status: ItemStatus) -> Iterator[StreamEvent]:
        """It ends; afterwards `item` is whole."""
        ...

    @property
    def item(self) -> OutputItem:
        """The item as it is by now, with all that is to be kept of it."""
        ...


class Item:
    """What all items that are being written have."""

    def __init__(self, prefix: str, output_index: int, make: Numbered) -> None:
        self._id = new_id(prefix)
        self._make = make
        self._texts: list[str] = []
        self._status: ItemStatus = "in_progress"
        self._of_item = {"output_index": output_index}
        self._place = {"item_id": self._id, "output_index": output_index}


class OpenReasoning(Item):
    """A reasoning item."""

    def __init__(self, output_index: int, make: Numbered) -> None:
        super().__init__("rs", output_index, make)

    @property
    def item(self) -> ReasoningItem:
        """The item as it is by now."""
        content = [ReasoningText(text=text)] if (text := "".join(self._texts)) else []
        return ReasoningItem(id=self._id, status=self._status, content=content)

    def opening(self) -> Iterator[StreamEvent]:
        """It begins."""
        yield self._make(OutputItemAdded, item=self.item, **self._of_item)
        yield self._make(ContentPartAdded, part=ReasoningText(), **self._place)

    def append(self, text: str) -> StreamEvent:
        """It grows."""
        self._texts.append(text)
        return self._make(ReasoningTextDelta, delta=text, **self._place)

    def closing(self, status: ItemStatus) -> Iterator[StreamEvent]:
        """It ends."""
        self._status = status
        text = "".join(self._texts)
        yield self._make(ReasoningTextDone, text=text, **self._place)
        yield self._make(ContentPartDone, part=ReasoningText(text=text), **self._place)
        yield self._make(OutputItemDone, item=self.item, **self._of_item)


class OpenSummary(Item):
    """A reasoning item whose text is told as its summary."""

    def __init__(self, output_index: int, make: Numbered) -> None:
        super().__init__("rs", output_index, make)

    @property
    def item(self) -> ReasoningItem:
        """The item as it is by now."""
        summary = [SummaryText(text=text)] if (text := "".join(self._texts)) else []
        return ReasoningItem(id=self._id, status=self._status, summary=summary)

    def opening(self) -> Iterator[StreamEvent]:
        """It begins."""
        yield self._make(OutputItemAdded, item=self.item, **self._of_item)
        yield self._make(SummaryPartAdded, part=SummaryText(), **self._place)

    def append(self, text: str) -> StreamEvent:
        """It grows."""
        self._texts.append(text)
        return self._make(SummaryTextDelta, delta=text, **self._place)

    def closing(self, status: ItemStatus) -> Iterator[StreamEvent]:
        """It ends."""
        self._status = status
        text = "".join(self._texts)
        yield self._make(SummaryTextDone, text=text, **self._place)
        yield self._make(SummaryPartDone, part=SummaryText(text=text), **self._place)
        yield self._make(OutputItemDone, item=self.item, **self._of_item)


class OpenMessage(Item):
    """A message item."""

    def __init__(self, output_index: int, make: Numbered) -> None:
        super().__init__("msg", output_index, make)
        self._logprobs: list[TokenLogprob] = []

    @property
    def item(self) -> MessageItem:
        """The item as it is by now."""
        return MessageItem(id=self._id, status=self._status, content=[self._part()] if self._texts else [])

    def opening(self) -> Iterator[StreamEvent]:
        """It begins."""
        yield self._make(OutputItemAdded, item=self.item, **self._of_item)
        yield self._make(ContentPartAdded, part=OutputText(), **self._place)

    def append(self, text: str, logprobs: list[TokenLogprob]) -> StreamEvent:
        """It grows."""
        self._texts.append(text)
        self._logprobs += logprobs
        return self._make(OutputTextDelta, delta=text, logprobs=logprobs, **self._place)

    def add_logprobs(self, logprobs: list[TokenLogprob]) -> None:
        """Take those of tokens that brought no more text."""
        self._logprobs += logprobs

    def closing(self, status: ItemStatus) -> Iterator[StreamEvent]:
        """It ends."""
        self._status = status
        part = self._part()
        yield self._make(OutputTextDone, text=part.text, logprobs=part.logprobs, **self._place)
        yield self._make(ContentPartDone, part=part, **self._place)
        yield self._make(OutputItemDone, item=self.item, **self._of_item)

    def _part(self) -> OutputText:
        return OutputText(text="".join(self._texts), logprobs=self._logprobs)


class OpenCall(Item):
    """A function call item."""

    def __init__(self, output_index: int, make: Numbered, name: str, namespace: str | None = None) -> None:
        super().__init__("fc", output_index, make)
        self._name = name
        self._namespace = msgspec.UNSET if namespace is None else namespace
        self._call_id = new_id("call")

    @property
    def item(self) -> FunctionCallItem:
        """The item as it is by now."""
        return FunctionCallItem(
            id=self._id,
            status=self._status,
            call_id=self._call_id,
            name=self._name,
            namespace=self._namespace,
            arguments="".join(self._texts),
        )

    def opening(self) -> Iterator[StreamEvent]:
        """It begins."""
        yield self._make(OutputItemAdded, item=self.item, **self._of_item)

    def append(self, arguments: str) -> StreamEvent:
        """It grows."""
        self._texts.append(arguments)
        return self._make(ArgumentsDelta, delta=arguments, **self._place)

    def closing(self, status: ItemStatus) -> Iterator[StreamEvent]:
        """It ends. What was cut off has no `done` of its arguments, for many clients take that as leave to run it."""
        self._status = status
        if status == "completed":
            yield self._make(ArgumentsDone, arguments="".join(self._texts), **self._place)
        yield self._make(OutputItemDone, item=self.item, **self._of_item)
