"""The next token of each row of logits. `SamplingParams` documents the order of the steps.

A random token is drawn by inverting the distribution's cumulative sum, in vocabulary order, at one random number per
row. That number is a hash of the request's seed and the output position and of nothing else, so a request draws the
same tokens alone, in any batch, and again after a preemption.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rose.engine.messages import TokenLogprobs
from rose.engine.sampling_params import SamplingParams
from rose.engine.worker.logits import adjust_logits, truncate_logits
from rose.engine.worker.token_mask import TokenMask

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
        return self.params.temperature >= _GREEDY_BELOW


@dataclass(frozen=True, slots=True)
class Sampled:
    """One row's token. `is_valid` is false if its logits were NaN or infinite; the token then means nothing."""

    token_id: int
    is_valid: bool
    logprobs: TokenLogprobs | None


def sample(logits: Tensor, rows: Sequence[SamplingRow], mask: TokenMask | None = None) -> list[Sampled]:
    """Sample one token for each row of `logits` [num_rows, vocab_size] float32, which is left as it is.

    mask: what grammars allow.
    """
    adjusted = adjust_logits(logits, rows, mask)
    best, token_ids = adjusted.max(dim=-1)  # [num_rows]; NaN wins over every number
    drawn = [i for i, row in enumerate(rows) if row.is_random]
    if drawn:
        index = torch.tensor(drawn, device=logits.device)
        chosen = adjusted - best[:, None] if len(drawn) == len(rows) else adjusted[index] - best[index, None]
        token_ids[index] = _draw(chosen, [rows[i] for i in drawn])
    logprobs = _logprobs(logits, token_ids, rows)
    # In one piece: each copy waits for the device.
    chosen_ids, valid = torch.stack((token_ids, best.isfinite())).tolist()
    return [
        Sampled(token_id, bool(is_valid), logprob)
        for token_id, is_valid, logprob in zip(chosen_ids, valid, logprobs, strict=True)
    ]


def uniform(seed: int, position: int) -> float:
    """The random number in (0, 1) of output position `position` of a request with this seed."""
    digest = blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return ((int.from_bytes(digest, "little") >> (64 - _UNIFORM_BITS)) + 0.5) / (1 << _UNIFORM_BITS)


def _draw(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Draw from softmax(logits / temperature), truncated. logits: [num_rows, vocab_size], their maximum is 0."""
    temperature = torch.tensor([row.params.temperature for row in rows], device=logits.device)
    scaled = truncate_logits(logits / temperature[:, None], rows)
    cumulative = scaled.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)  # [num_rows, vocab_size]
    u = torch.tensor(
        [uniform(row.seed, len(row.output_token_ids)) for row in rows], dtype=torch.float64, device=logits.device
    )
    target = (u * cumulative[:, -1])[:, None]
    # The first token whose cumulative sum lies above the target. The limit only matters for rows of NaN.
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)


def _logprobs(logits: Tensor, token_ids: Tensor, rows: Sequence[SamplingRow]) -> list[TokenLogprobs | None]:
    """Log-probabilities of the chosen tokens, and the best ones, for the rows that asked."""
    found: list[TokenLogprobs | None] = [None] * len(rows)
    asking = [i for i, row in enumerate(rows) if row.params.logprobs is not None]
    if not asking:
        return found
    index = torch.tensor(asking, device=logits.device)
    logprobs = logits[index].float().log_softmax(dim=-1)  # [num_asking, vocab_size]
    chosen = logprobs.gather(1, token_ids[index, None])[:, 0].tolist()
    num_top = min(max(rows[i].params.logprobs or 0 for i in asking), logits.shape[-1])
    top = logprobs.topk(num_top, dim=-1)
    for i, logprob, values, ids in zip(asking, chosen, top.values.tolist(), top.indices.tolist(), strict=True):
        count = rows[i].params.logprobs or 0
        found[i] = TokenLogprobs(logprob=logprob, top=list(zip(ids[:count], values[:count], strict=True)))
    return found
