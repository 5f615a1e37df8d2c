"""The JSON that `/v1/completions` answers with, streamed and not: the same object."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType


class Logprobs(msgspec.Struct, frozen=True):
    """Log-probabilities in this API's old form: parallel lists, and alternatives by their text.

    The first token of an echoed prompt has neither, for nothing foretells it.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One completion, or what is new of it. Those of the first prompt come first."""

    index: int
    text: str
    logprobs: Logprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Of the prompts' tokens, those found in the prefix cache."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts, all prompts together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer, or one event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage | UnsetType = UNSET
