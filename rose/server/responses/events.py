"""The events of a streamed response. Each has its name in `type`, and in the `event:` line of its frame."""

import msgspec

from rose.server.logprobs import TokenLogprob
from rose.server.responses.objects import OutputItem, OutputText, ReasoningText, Response, SummaryText


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all events. `sequence_number` rises by one from 0."""

    sequence_number: int

    @property
    def event_type(self) -> str:
        """The event's `type`."""
        return str(self.__struct_config__.tag)


class _OfResponse(StreamEvent, frozen=True, kw_only=True):
    response: Response


class Created(_OfResponse, frozen=True, kw_only=True, tag="response.created"):
    """The first event."""


class InProgress(_OfResponse, frozen=True, kw_only=True, tag="response.in_progress"):
    """The second event."""


class Completed(_OfResponse, frozen=True, kw_only=True, tag="response.completed"):
    """The last event of a response that is whole."""


class Incomplete(_OfResponse, frozen=True, kw_only=True, tag="response.incomplete"):
    """The last event of a response that was cut by its limit."""


class Failed(_OfResponse, frozen=True, kw_only=True, tag="response.failed"):
    """The last event of a response that failed, or was cancelled."""


class _OfItem(StreamEvent, frozen=True, kw_only=True):
    output_index: int
    item: OutputItem


class OutputItemAdded(_OfItem, frozen=True, kw_only=True, tag="response.output_item.added"):
    """An item begins."""


class OutputItemDone(_OfItem, frozen=True, kw_only=True, tag="response.output_item.done"):
    """An item is over; `item` is all of it."""


class _InItem(StreamEvent, frozen=True, kw_only=True):
    item_id: str
    output_index: int


class _InPart(_InItem, frozen=True, kw_only=True):
    content_index: int = 0


class ContentPartAdded(_InPart, frozen=True, kw_only=True, tag="response.content_part.added"):
    """A part of an item begins."""

    part: OutputText | ReasoningText


class ContentPartDone(_InPart, frozen=True, kw_only=True, tag="response.content_part.done"):
    """A part of an item is over; `part` is all of it."""

    part: OutputText | ReasoningText


class ReasoningTextDelta(_InPart, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """More reasoning."""

    delta: str


class ReasoningTextDone(_InPart, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """All the reasoning of an item."""

    text: str


class _InSummary(_InItem, frozen=True, kw_only=True):
    summary_index: int = 0


class SummaryPartAdded(_InSummary, frozen=True, kw_only=True, tag="response.reasoning_summary_part.added"):
    """A summary begins."""

    part: SummaryText


class SummaryPartDone(_InSummary, frozen=True, kw_only=True, tag="response.reasoning_summary_part.done"):
    """A summary is over; `part` is all of it."""

    part: SummaryText


class SummaryTextDelta(_InSummary, frozen=True, kw_only=True, tag="response.reasoning_summary_text.delta"):
    """More of the summary."""

    delta: str


class SummaryTextDone(_InSummary, frozen=True, kw_only=True, tag="response.reasoning_summary_text.done"):
    """All the text of a summary."""

    text: str


class OutputTextDelta(_InPart, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """More of the text."""

    delta: str
    logprobs: list[TokenLogprob] = []


class OutputTextDone(_InPart, frozen=True, kw_only=True, tag="response.output_text.done"):
    """All the text of a message."""

    text: str
    logprobs: list[TokenLogprob] = []


class ArgumentsDelta(_InItem, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    delta: str


class ArgumentsDone(_InItem, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    """All the arguments of a call."""

    arguments: str


class CodeInProgress(_InItem, frozen=True, kw_only=True, tag="response.code_interpreter_call.in_progress"):
    """A call of the interpreter begins."""


class CodeDelta(_InItem, frozen=True, kw_only=True, tag="response.code_interpreter_call_code.delta"):
    """More of the code."""

    delta: str


class CodeDone(_InItem, frozen=True, kw_only=True, tag="response.code_interpreter_call_code.done"):
    """All the code."""

    code: str


class CodeInterpreting(_InItem, frozen=True, kw_only=True, tag="response.code_interpreter_call.interpreting"):
    """The code begins to run."""


class CodeCompleted(_InItem, frozen=True, kw_only=True, tag="response.code_interpreter_call.completed"):
    """The code has run."""


class SearchInProgress(_InItem, frozen=True, kw_only=True, tag="response.web_search_call.in_progress"):
    """A call of the web search begins."""


class SearchSearching(_InItem, frozen=True, kw_only=True, tag="response.web_search_call.searching"):
    """The web is asked."""


class SearchCompleted(_InItem, frozen=True, kw_only=True, tag="response.web_search_call.completed"):
    """The web has answered."""
