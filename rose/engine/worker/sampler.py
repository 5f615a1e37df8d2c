"""The next token of each row of logits. `SamplingParams` documents the order of the steps.

A random token is drawn by inverting the distribution's cumulative sum, in vocabulary order, at one random number per
row. That number is a hash of the request's seed and the output position and of nothing else, so a request draws the
same tokens alone, in any batch, and again after a preemption.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rose.engine.messages import TokenLogprobs
from rose.engine.sampling_params import SamplingParams
from rose.engine.worker.logits import adjust_logits, has_penalty, some_at_a_time, truncate_logits, truncates
from rose.engine.worker.token_mask import TokenMask
from rose.kernels.sampling.op import sample_tokens

_GREEDY_BELOW = 1e-5  # a temperature this low leaves nothing to chance, and dividing by it may overflow
_UNIFORM_BITS = 48  # few enough that u * total stays below total in float64


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What sampling one request's next token depends on, besides the logits. Token ids are int64 arrays."""

    params: SamplingParams
    seed: int
    stop_ids: tuple[int, ...]
    prompt_token_ids: npt.NDArray[np.int64]
    output_token_ids: npt.NDArray[np.int64]

    @property
    def is_random(self) -> bool:
        """Whether the token is drawn rather than the best one taken."""
        return is_random(self.params)

    @property
    def temperature(self) -> float:
        """See `temperature_of`."""
        return temperature_of(self.params)

    @property
    def uniform(self) -> float:
        """The row's random number, if it needs one."""
        return uniform(self.seed, len(self.output_token_ids)) if self.is_random else 0.0


class Sampled(msgspec.Struct, frozen=True):
    """One row's token. `is_valid` is false if its logits were NaN or infinite; the token then means nothing."""

    token_id: int
    is_valid: bool
    logprobs: TokenLogprobs | None


def sample(logits: Tensor, rows: Sequence[SamplingRow], mask: TokenMask | None = None) -> list[Sampled]:
    """Sample one token for each row of `logits` [num_rows, vocab_size] float32, which is left as it is.

    mask: what grammars allow.
    """
    device = logits.device
    adjusted = adjust_logits(logits, rows, mask)
    temperatures = torch.tensor([row.temperature for row in rows], device=device)
    truncated = [i for i, row in enumerate(rows) if row.is_random and truncates(row.params)]
    if truncated and adjusted is logits:
        adjusted = logits.clone()
    for some in some_at_a_time(truncated):
        index = torch.tensor(some, device=device)
        part = adjusted[index]
        scaled = (part - part.amax(dim=-1, keepdim=True)) / temperatures[index, None]
        adjusted[index] = truncate_logits(scaled, [rows[i] for i in some])
        temperatures[index] = 1.0
    uniforms = torch.tensor([row.uniform for row in rows], dtype=torch.float64, device=device)
    chosen = sample_tokens(adjusted.contiguous(), temperatures, uniforms)
    logprobs = _logprobs(logits, chosen[0], rows)
    return as_sampled(chosen, logprobs)


def as_sampled(chosen: Tensor, logprobs: Sequence[TokenLogprobs | None] | None = None) -> list[Sampled]:
    """What `sample_tokens` gives, [2, num_rows], on the host."""
    token_ids, valid = chosen.tolist()
    return [
        Sampled(token_id, is_valid == 1, logprob)
        for token_id, is_valid, logprob in zip(token_ids, valid, logprobs or [None] * len(valid), strict=True)
    ]


def is_random(params: SamplingParams) -> bool:
    """Whether tokens are drawn rather than the best ones taken."""
    return params.temperature >= _GREEDY_BELOW


def temperature_of(params: SamplingParams) -> float:
    """As `sample_tokens` takes it: 0 for the best token."""
    return params.temperature if is_random(params) else 0.0


def is_plain(params: SamplingParams) -> bool:
    """Whether a token depends on nothing but the logits, the temperature and a random number."""
    return (
        not has_penalty(params)
        and not truncates(params)
        and not params.logit_bias
        and not params.min_tokens
        and params.logprobs is None
        and params.grammar is None
    )


def uniform(seed: int, position: int) -> float:
    """The random number in (0, 1) of output position `position` of a request with this seed."""
    digest = blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return ((int.from_bytes(digest, "little") >> (64 - _UNIFORM_BITS)) + 0.5) / (1 << _UNIFORM_BITS)


def _logprobs(logits: Tensor, token_ids: Tensor, rows: Sequence[SamplingRow]) -> list[TokenLogprobs | None]:
    """Log-probabilities of the chosen tokens, and the best ones, for the rows that asked."""
    found: list[TokenLogprobs | None] = [None] * len(rows)
    for some in some_at_a_time([i for i, row in enumerate(rows) if row.params.logprobs is not None]):
        index = torch.tensor(some, device=logits.device)
        counts = [rows[i].params.logprobs or 0 for i in some]
        for i, entry in zip(some, token_logprobs(logits[index], token_ids[index], counts), strict=True):
            found[i] = entry
    return found


def token_logprobs(logits: Tensor, token_ids: Tensor, counts: Sequence[int]) -> list[TokenLogprobs]:
    """For each row of logits [num_rows, vocab_size] that of its token, [num_rows] int64, and the counts[i] best."""
    logprobs = logits.float().log_softmax(dim=-1)
    chosen = logprobs.gather(1, token_ids[:, None])[:, 0].tolist()
    top = logprobs.topk(min(max(counts), logits.shape[-1]), dim=-1)
    return [
        TokenLogprobs(logprob=logprob, top=list(zip(ids[:count], values[:count], strict=True)))
        for logprob, values, ids, count in zip(chosen, top.values.tolist(), top.indices.tolist(), counts, strict=True)
    ]
