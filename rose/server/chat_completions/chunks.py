"""The JSON that `/v1/chat/completions` answers with, streamed and not.

Fields that are `UNSET` are left out; those that are None are sent as null, as OpenAI's API does.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from rose.server.logprobs import TokenLogprob

FinishReason = Literal["stop", "length", "tool_calls"]


class Logprobs(msgspec.Struct, frozen=True):
    """The log-probabilities of content tokens; reasoning and tool calls have none."""

    content: list[TokenLogprob]
    refusal: None = None


class FunctionDelta(msgspec.Struct, frozen=True):
    """A function call, or a piece of one: the name comes whole, and only once."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call, or a piece of one. `index` is only in streams."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, or in a stream what is new of it."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: UnsetType | None = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the `n` completions, whole."""

    index: int
    message: Message
    logprobs: Logprobs | None = None
    finish_reason: FinishReason
    token_ids: list[int] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of one of the `n` completions."""

    index: int
    delta: Message
    logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None
    token_ids: list[int] | UnsetType = UNSET


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Of the prompt's tokens, those found in the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """Of the tokens generated, those of the reasoning."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer of a request that is not streamed."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
