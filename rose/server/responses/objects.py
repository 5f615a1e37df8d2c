"""The JSON objects of the Responses API: a response and the items of its output.

Fields that are None are sent as null, as OpenAI's API does.
"""

from typing import Any, Literal

import msgspec

from rose.server.logprobs import TokenLogprob

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class _Tagged(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of what tells its kind in `type`."""


class ReasoningText(_Tagged, frozen=True, kw_only=True, tag="reasoning_text"):
    """The one part of a reasoning item."""

    text: str = ""


class OutputText(_Tagged, frozen=True, kw_only=True, tag="output_text"):
    """The one part of a message."""

    text: str = ""
    annotations: tuple[()] = ()
    logprobs: list[TokenLogprob] = []


class ReasoningItem(_Tagged, frozen=True, kw_only=True, tag="reasoning"):
    """A stretch of reasoning. There is no summary of it: all of it is in `content`."""

    id: str
    status: ItemStatus
    summary: tuple[()] = ()
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
    arguments: str = ""


OutputItem = ReasoningItem | MessageItem | FunctionCallItem


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
