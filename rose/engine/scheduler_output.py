"""What passes between the scheduler and the workers in one step: a diff, since workers keep the requests' state."""

from collections.abc import Sequence

import msgspec

from rose.engine.messages import RequestFailure, TokenLogprobs
from rose.engine.sampling_params import SamplingParams


class NewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that workers do not hold yet, or no longer hold after a preemption.

    token_ids: prompt, and output so far; an array, for which an encoder needs `enc_hook=list`.
    block_tables: one list of blocks for each KV group, as it stands.
    prompt_logprobs: how many of the best to tell for each token of the prompt; None if nothing is to be told of them.
    """

    key: int
    token_ids: Sequence[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    stop_ids: tuple[int, ...]
    block_tables: tuple[list[int], ...]
    prompt_logprobs: int | None = None


class ScheduledRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to compute: tokens num_computed_tokens ... num_computed_tokens + num_tokens - 1 of a request.

    If they reach the last token known, the next one is sampled. new_blocks: to append to each group's block table,
    nothing where none are, as for a request that is also in `SchedulerOutput.new`.
    """

    key: int
    num_computed_tokens: int
    num_tokens: int
    num_draft_tokens: int = 0
    new_blocks: tuple[list[int], ...] = ()


class SchedulerOutput(msgspec.Struct, kw_only=True):
    """One step's work. `dropped`: requests to forget first, finished or preempted since the last step."""

    dropped: list[int] = msgspec.field(default_factory=list)
    new: list[NewRequest] = msgspec.field(default_factory=list)
    scheduled: list[ScheduledRequest] = msgspec.field(default_factory=list)


class SampledTokens(msgspec.Struct, frozen=True, kw_only=True):
    """What a step brought one request.

    prompt_logprobs: of the prompt's tokens, each that follows one which this step computed; a step may bring these and
    no tokens. is_complete: its grammar allows nothing more. failure: why it cannot go on; then there are no tokens.
    """

    key: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    is_complete: bool = False
    failure: RequestFailure | None = None
