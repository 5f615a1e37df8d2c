"""What a streamed and an unstreamed answer have in common: their envelope, and how events are written in them."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from rose.server.chat_completions.chunks import (
    ChatCompletion,
    ChatCompletionChunk,
    Choice,
    ChunkChoice,
    CompletionTokensDetails,
    FinishReason,
    Logprobs,
    PromptTokensDetails,
    Usage,
)
from rose.server.completion import ContentLogprob
from rose.server.generation import Usage as TokenCounts
from rose.server.logprobs import LogprobSpeller
from rose.server.settings import ReasoningField


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerStyle:
    """The fixed part of one request's answer, and what the client wants in it.

    reasoning_field: None leaves the reasoning out.
    """

    model: str
    system_fingerprint: str
    speller: LogprobSpeller
    reasoning_field: ReasoningField | None = "both"
    with_logprobs: bool = False
    with_token_ids: bool = False
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def completion(self, choices: list[Choice], counts: TokenCounts, prompt_token_ids: list[int]) -> ChatCompletion:
        """The whole answer."""
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model,
            system_fingerprint=self.system_fingerprint,
            choices=choices,
            usage=usage(counts),
            prompt_token_ids=prompt_token_ids if self.with_token_ids else UNSET,
        )

    def chunk(
        self, choices: list[ChunkChoice], counts: TokenCounts | None = None, prompt_token_ids: list[int] | None = None
    ) -> ChatCompletionChunk:
        """One event of the stream; with usage if `counts` are given."""
        return ChatCompletionChunk(
            id=self.id,
            created=self.created,
            model=self.model,
            system_fingerprint=self.system_fingerprint,
            choices=choices,
            usage=UNSET if counts is None else usage(counts),
            prompt_token_ids=UNSET if prompt_token_ids is None else prompt_token_ids,
        )

    def reasoning(self, text: str) -> dict[str, str]:
        """The message fields that carry reasoning."""
        names = ("reasoning", "reasoning_content") if self.reasoning_field == "both" else (self.reasoning_field,)
        return {name: text for name in names if name is not None}

    def logprobs(self, entries: Sequence[ContentLogprob]) -> Logprobs | None:
        """The log-probabilities of content tokens; None unless they were asked for."""
        return Logprobs([self.speller.spell(entry) for entry in entries]) if self.with_logprobs else None

    def token_ids(self, ids: Sequence[int]) -> list[int] | UnsetType:
        """A choice's token ids; left out unless they were asked for."""
        return list(ids) if self.with_token_ids else UNSET


def usage(counts: TokenCounts) -> Usage:
    """Token counts as OpenAI's API writes them."""
    return Usage(
        prompt_tokens=counts.num_prompt_tokens,
        completion_tokens=counts.num_completion_tokens,
        total_tokens=counts.num_prompt_tokens + counts.num_completion_tokens,
        prompt_tokens_details=PromptTokensDetails(counts.num_cached_tokens),
        completion_tokens_details=CompletionTokensDetails(counts.num_reasoning_tokens),
    )


def finish_reason(reason: str) -> FinishReason:
    """A `Finished.reason` as this API has it. Aborted and failed completions never come here: they are errors."""
    match reason:
        case "length" | "tool_calls":
            return reason
        case _:
            return "stop"


def new_tool_call_id() -> str:
    """An id by which the client will give a call's result back."""
    return f"call_{uuid.uuid4().hex[:24]}"
