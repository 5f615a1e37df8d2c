"""The JSON objects of the Responses API: a response and the items of its output.

Fields that are None are sent as null, as OpenAI's API does.
"""

from collections.abc import Collection
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from rose.server.logprobs import TokenLogprob

# What an `include` can ask for.
LOGPROBS = "message.output_text.logprobs"
OUTPUTS = "code_interpreter_call.outputs"
RESULTS = "web_search_call.results"
SOURCES = "web_search_call.action.sources"

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ToolCallStatus = Literal["in_progress", "completed", "incomplete", "failed"]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class _Tagged(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of what tells its kind in `type`."""


class ReasoningText(_Tagged, frozen=True, kw_only=True, tag="reasoning_text"):
    """The one part of a reasoning item."""

    text: str = ""


class SummaryText(_Tagged, frozen=True, kw_only=True, tag="summary_text"):
    """The one part of a reasoning item's summary."""

    text: str = ""


class OutputText(_Tagged, frozen=True, kw_only=True, tag="output_text"):
    """The one part of a message."""

    text: str = ""
    annotations: tuple[()] = ()
    logprobs: list[TokenLogprob] = []


class ReasoningItem(_Tagged, frozen=True, kw_only=True, tag="reasoning"):
    """A stretch of reasoning. It is in `content`, or in place of a summary in `summary`, never in both."""

    id: str
    status: ItemStatus
    summary: list[SummaryText] = []
    content: list[ReasoningText] = []
    encrypted_content: None = None


class MessageItem(_Tagged, frozen=True, kw_only=True, tag="message"):
    """Text for the user."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText] = []


class FunctionCallItem(_Tagged, frozen=True, kw_only=True, tag="function_call"):
    """A call of a function. An incomplete one was cut off, and must not be run."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    namespace: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str = ""


class Logs(_Tagged, frozen=True, kw_only=True, tag="logs"):
    """What code printed."""

    logs: str


class CodeInterpreterCallItem(_Tagged, frozen=True, kw_only=True, tag="code_interpreter_call"):
    """A piece of code that was run. outputs: what it printed, as the model was told."""

    id: str
    status: ToolCallStatus
    code: str
    container_id: str
    outputs: list[Logs] | None = None

    def shown(self, include: Collection[str]) -> "CodeInterpreterCallItem":
        """The item without what the client did not ask for."""
        return self if OUTPUTS in include else msgspec.structs.replace(self, outputs=None)


class SearchSource(_Tagged, frozen=True, kw_only=True, tag="url"):
    """An address that a search has found."""

    url: str


class Search(_Tagged, frozen=True, kw_only=True, tag="search", omit_defaults=True):
    """A search of the web."""

    query: str
    queries: list[str]
    sources: list[SearchSource] | None = None


class OpenPage(_Tagged, frozen=True, kw_only=True, tag="open_page"):
    """A page that was opened. url: if the model named it by that."""

    url: str | None


class FindInPage(_Tagged, frozen=True, kw_only=True, tag="find_in_page"):
    """A text that was looked for in a page."""

    pattern: str
    url: str


class ResultText(_Tagged, frozen=True, kw_only=True, tag="text"):
    """What a call of the web search answered, as the model was told."""

    text: str


class WebSearchCallItem(_Tagged, frozen=True, kw_only=True, tag="web_search_call"):
    """A call of the web search. recipient, arguments: as the model wrote them, to be given back to it."""

    id: str
    status: ToolCallStatus
    action: Search | OpenPage | FindInPage
    results: list[ResultText] | UnsetType = UNSET
    recipient: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET

    def shown(self, include: Collection[str]) -> "WebSearchCallItem":
        """The item without what the client did not ask for."""
        action = self.action
        if isinstance(action, Search) and SOURCES not in include:
            action = msgspec.structs.replace(action, sources=None)
        results = self.results if RESULTS in include else UNSET
        return msgspec.structs.replace(self, action=action, results=results, recipient=UNSET, arguments=UNSET)


OutputItem = ReasoningItem | MessageItem | FunctionCallItem | CodeInterpreterCallItem | WebSearchCallItem


def as_shown(item: dict[str, Any], include: Collection[str]) -> dict[str, Any]:
    """A stored item as `shown` would have it. It may be a client's, and lack anything but its type."""
    if item["type"] == "code_interpreter_call" and OUTPUTS not in include and "outputs" in item:
        return item | {"outputs": None}
    if item["type"] == "web_search_call":
        hidden = {"recipient", "arguments"} | (set() if RESULTS in include else {"results"})
        item = {name: value for name, value in item.items() if name not in hidden}
        if SOURCES not in include and isinstance(action := item.get("action"), dict):
            item["action"] = {name: value for name, value in action.items() if name != "sources"}
    return item


class InputTokensDetails(msgspec.Struct, frozen=True):
    """Of the prompt's tokens, those found in the prefix cache."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """Of the tokens generated, those of the reasoning."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct, frozen=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ReasoningOptions(msgspec.Struct, frozen=True):
    """The request's `reasoning`, as it was understood."""

    effort: str | None
    summary: str | None


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response, in whatever state. All but the first few fields repeat the request's."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus = "in_progress"
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    output: list[OutputItem] = []
    usage: Usage | None = None

    model: str
    background: bool = False
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, Any] = {}
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: ReasoningOptions
    safety_identifier: str | None = None
    service_tier: Literal["default"] = "default"
    store: bool = True
    temperature: float
    text: dict[str, Any]
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]] = []
    top_logprobs: int = 0
    top_p: float
    truncation: str = "disabled"
    user: str | None = None
