"""The typed messages between a frontend and an engine: the same in one process and over a socket.

A frontend sends `AddRequest`, `Abort`, `Ping` and `Shutdown`; the engine answers with `LoadProgress` while it loads,
`EngineReady` once, then `EngineOutputs`, and `EngineDied` if it must give up. Every added request gets exactly one
output with a `finish_reason` for each of its `n` completions, unless the engine dies. To whatever a frontend sends, the
engine answers with `EngineOutputs` before its next wait, be they empty: that it does is how a frontend knows it works.
"""

from typing import Literal

import msgspec

from rose.engine.sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]

MODEL_ERROR = "model_error"  # what the model computed is no answer, nor what it kept of it
VOCABULARY_ERROR = "vocabulary_error"  # no request can have a grammar
ENGINE_FAULTS = frozenset({MODEL_ERROR, VOCABULARY_ERROR})  # codes of failures that a request's client cannot help

STEP_SIZES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Tokens of a step up to which `EngineStats.steps_by_size` counts."""


class AddRequest(msgspec.Struct, frozen=True, kw_only=True, tag="add"):
    """A new request. `request_id` is chosen by the frontend and unique among its open requests."""

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """End a request early. `index` names one of its `n` completions, None all of them.

    `finish_reason` is what the final output will carry: `abort` when the client is gone, `stop` when a layer above
    found a stop string. A request that is unknown or already finished is left alone.
    """

    request_id: str
    index: int | None = None
    finish_reason: FinishReason = "abort"


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Finish every open request with `abort` and end the engine."""


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Asks for nothing but an answer."""


class FrontendGone(msgspec.Struct, frozen=True, tag="gone"):
    """Another frontend's process has ended: abort what it left open, and send it nothing more."""

    name: str


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one output position, natural log, of the raw logits.

    `top` holds (token id, logprob), best first, as many as were asked for.
    """

    logprob: float
    top: list[tuple[int, float]]


class RequestFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why the engine refused or gave up a request; the fields of `RequestError`."""

    message: str
    param: str | None = None
    code: str | None = None


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What one step brought one completion of a request.

    token_ids: the new ids only; the stopping id, if any, is the last. logprobs: one entry per new id when asked for.
    prompt_logprobs: when asked for, with the first tokens of the first completion: of each token of the prompt but one.
    finish_reason: None while it goes on; then exactly one output carries it. num_cached_tokens: prompt tokens taken
    from the prefix cache. queue_s: how long it waited for its first place in a batch. error: set if and only if
    finish_reason is `error`.
    """

    request_id: str
    index: int = 0
    token_ids: list[int] = msgspec.field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    queue_s: float = 0.0
    error: RequestFailure | None = None


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's state after a step; counters grow from its start, gauges are of now.

    steps_by_size: how many steps computed at most STEP_SIZES[i] tokens and more than the entry before; the last entry
    is for larger ones. Empty before the first step.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_steps: int = 0
    num_scheduled_tokens: int = 0
    steps_by_size: tuple[int, ...] = ()


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """How far loading the model has come, in bytes of weights."""

    done_bytes: int
    total_bytes: int


class EngineReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The engine is up.

    max_model_len: tokens of prompt and output together that one request may have. takes_grammars: whether the model
    has a tokenizer, without which grammars cannot be enforced.
    """

    max_model_len: int
    vocab_size: int
    block_size: int
    num_blocks: int
    device: str
    dtype: str
    num_parameters: int = 0
    load_time_s: float = 0.0
    takes_grammars: bool = False


class EngineOutputs(msgspec.Struct, frozen=True, kw_only=True, tag="outputs"):
    """The outputs of one step, and the stats after it."""

    outputs: list[RequestOutput]
    stats: EngineStats


class EngineDied(msgspec.Struct, frozen=True, kw_only=True, tag="died"):
    """The engine cannot go on, or could not start.

    is_user_error: the text is meant for the user as it is (a bad option, a damaged checkpoint); `error_type` then
    names its class in `rose.errors`.
    """

    message: str
    is_user_error: bool = False
    error_type: str = "EngineDead"


ToEngine = AddRequest | Abort | Ping | FrontendGone | Shutdown
FromEngine = LoadProgress | EngineReady | EngineOutputs | EngineDied
