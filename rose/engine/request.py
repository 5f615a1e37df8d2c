"""A request inside the engine: one completion of one prompt, and how far it has come."""

import struct
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from rose.engine.messages import AddRequest, FinishReason, TokenLogprobs
from rose.engine.sampling_params import MAX_N, SamplingParams
from rose.errors import ContextLengthExceeded, RequestError


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What a request is checked against.

    max_model_len: counts prompt and output together. takes_grammars: whether grammars can be enforced.
    """

    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    takes_grammars: bool = False


@dataclass(slots=True, eq=False)
class Request:
    """One completion. The engine makes `n` of them for a request of the frontend.

    key: the engine's own number for it, never used twice. token_ids: prompt, then output so far, of type "q".
    num_computed_tokens: leading tokens whose keys and values are in the cache; the scheduler's one notion of progress.
    max_tokens_total: prompt and output together at which it ends. stop_ids: ids that end it.
    num_cached_tokens: prompt tokens that the prefix cache had when it first ran. arrival_s: the clock when it came;
    queue_s: how long it then waited to run for the first time.
    followers: completions of the same prompt that wait until this one has computed it, to share its blocks.
    prompt_logprobs: what is known so far of the prompt's tokens; None once it is told, or if nobody asked.
    """

    key: int
    request_id: str
    index: int
    params: SamplingParams
    seed: int
    token_ids: "array[int]"
    num_prompt_tokens: int
    max_tokens_total: int
    stop_ids: tuple[int, ...]
    num_computed_tokens: int = 0
    num_draft_tokens: int = 0
    num_cached_tokens: int | None = None
    arrival_s: float = field(default_factory=time.monotonic)
    queue_s: float = 0.0
    block_hashes: list[bytes] = field(default_factory=list)
    followers: list["Request"] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens known so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def has_computed_prompt(self) -> bool:
        """Whether the whole prompt is in the cache."""
        return self.num_computed_tokens >= self.num_prompt_tokens

    def append(self, token_id: int) -> FinishReason | None:
        """Take the next output token; the reason if it is the last."""
        self.token_ids.append(token_id)
        if token_id in self.stop_ids and self.num_output_tokens >= self.params.min_tokens:
            return "stop"
        if self.num_tokens >= self.max_tokens_total:
            return "length"
        return None


def num_completions(params: SamplingParams) -> int:
    """How many final outputs a request gets, even one refused because its `n` is out of range."""
    return min(max(params.n, 1), MAX_N)


def build_requests(
    message: AddRequest, limits: RequestLimits, keys: Iterator[int], draw_seed: Callable[[], int]
) -> list[Request]:
    """The `n` requests of one message; the first is to compute the prompt for the others.

    draw_seed gives the seed of a request that brings none. Raises `RequestError` if the engine cannot serve it.
    """
    params = message.sampling_params
    params.validate()
    prompt = _check_prompt(message.prompt_token_ids, limits)
    _check_ids("stop_token_ids", params.stop_token_ids, limits.vocab_size)
    _check_ids("logit_bias", tuple(params.logit_bias or ()), limits.vocab_size)
    if params.grammar is not None and not limits.takes_grammars:
        raise RequestError(
            "this model was loaded without a tokenizer, so no grammar can be enforced",
            param="grammar",
            code="no_grammars",
        )
    num_prompt_tokens = len(message.prompt_token_ids)
    max_tokens_total = _max_tokens_total(num_prompt_tokens, params.max_tokens, limits.max_model_len)
    stop_ids = () if params.ignore_eos else tuple(dict.fromkeys((*limits.eos_token_ids, *params.stop_token_ids)))
    return [
        Request(
            key=next(keys),
            request_id=message.request_id,
            index=index,
            params=params,
            seed=draw_seed() if params.seed is None else params.seed + index,
            token_ids=prompt[:],
            num_prompt_tokens=num_prompt_tokens,
            max_tokens_total=max_tokens_total,
            stop_ids=stop_ids,
            prompt_logprobs=[] if index == 0 and params.prompt_logprobs is not None else None,
        )
        for index in range(params.n)
    ]


def _check_prompt(token_ids: list[int], limits: RequestLimits) -> "array[int]":
    """The prompt as the engine keeps it: whatever comes later copies memory instead of looking at each token."""
    if not token_ids:
        raise RequestError("the prompt has no tokens", param="prompt", code="empty_prompt")
    if len(token_ids) >= limits.max_model_len:
        raise ContextLengthExceeded(
            f"the prompt has {len(token_ids)} tokens, and this model's context is {limits.max_model_len} tokens for "
            "prompt and output together: shorten the prompt"
        )
    try:
        prompt = array("q", struct.pack(f"{len(token_ids)}q", *token_ids))  # of the ways to make one the fastest
    except struct.error:  # beyond 64 bits
        _check_ids("prompt", token_ids, limits.vocab_size)
        raise
    ids = np.frombuffer(prompt, dtype=np.int64)
    if ids.min() < 0 or ids.max() >= limits.vocab_size:
        _check_ids("prompt", token_ids, limits.vocab_size)
    return prompt


def _check_ids(param: str, token_ids: Sequence[int], vocab_size: int) -> None:
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        bad = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        raise RequestError(
            f"{param} has token id {bad}; this model's ids are 0 to {vocab_size - 1}",
            param=param,
            code="invalid_token_id",
        )


def _max_tokens_total(num_prompt_tokens: int, max_tokens: int | None, max_model_len: int) -> int:
    if max_tokens is None:
        return max_model_len
    if num_prompt_tokens + max_tokens > max_model_len:
        raise ContextLengthExceeded(
            f"the prompt has {num_prompt_tokens} tokens and max_tokens is {max_tokens}, together "
            f"{num_prompt_tokens + max_tokens}; this model's context is {max_model_len} tokens: shorten the prompt or "
            f"lower max_tokens to {max_model_len - num_prompt_tokens}",
        )
    return num_prompt_tokens + max_tokens
