"""Changes to logits before a token is chosen: penalties, biases and masks; then top-k, top-p and min-p.

Each function does nothing, and costs nothing, for rows whose parameters do not ask for it.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rose.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from rose.engine.worker.sampler import SamplingRow
    from rose.engine.worker.token_mask import TokenMask

_ROWS_AT_ONCE = 32
_NUM_CANDIDATES = 1024  # so many best logits nearly always hold the whole nucleus, and are found without a full sort


def some_at_a_time(rows: Sequence[int]) -> Iterator[Sequence[int]]:
    """Parts of `rows`, for work that takes ten times the memory of their logits, which are 0.8 MB a row."""
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        yield rows[start : start + _ROWS_AT_ONCE]


def adjust_logits(logits: Tensor, rows: Sequence["SamplingRow"], mask: "TokenMask | None" = None) -> Tensor:
    """Penalties, bias, grammars, `min_tokens`. Returns a new tensor if anything changes, else `logits` itself."""
    penalized = [i for i, row in enumerate(rows) if has_penalty(row.params)]
    biases = [(i, token, bias) for i, row in enumerate(rows) for token, bias in (row.params.logit_bias or {}).items()]
    early = [i for i, row in enumerate(rows) if row.stop_ids and len(row.output_token_ids) < row.params.min_tokens]
    if not (penalized or biases or mask or early):
        return logits
    logits = logits.clone()
    for some in some_at_a_time(penalized):
        index = torch.tensor(some, device=logits.device)
        logits[index] = _penalize(logits[index], [rows[i] for i in some])
    if biases:
        row_ids, token_ids, values = zip(*biases, strict=True)
        where = (torch.tensor(row_ids, device=logits.device), torch.tensor(token_ids, device=logits.device))
        logits.index_put_(where, torch.tensor(values, device=logits.device), accumulate=True)
    if mask is not None:
        for some in some_at_a_time(range(len(mask.rows))):
            index = torch.tensor([mask.rows[i] for i in some], device=logits.device)
            logits[index] = mask.apply(logits[index], some)
    for some in some_at_a_time(early):
        index = torch.tensor(some, device=logits.device)
        logits[index] = _hold_back_stops(logits[index], [rows[i] for i in some])
    return logits


def _hold_back_stops(logits: Tensor, rows: Sequence["SamplingRow"]) -> Tensor:
    """No stop ids. A row that a grammar leaves nothing else is complete, and may end."""
    places = [(i, stop_id) for i, row in enumerate(rows) for stop_id in row.stop_ids]
    row_ids, stop_ids = zip(*places, strict=True)
    where = (torch.tensor(row_ids, device=logits.device), torch.tensor(stop_ids, device=logits.device))
    held = logits.index_put(where, torch.tensor(-torch.inf, device=logits.device))
    return torch.where(held.amax(dim=-1, keepdim=True) == -torch.inf, logits, held)


def truncate_logits(logits: Tensor, rows: Sequence["SamplingRow"]) -> Tensor:
    """Set logits outside top-k, then top-p of what is left, then min-p, to -inf. Of equal logits, lower ids stay.

    logits: [num_rows, vocab_size], already divided by the temperature; changed in place and returned.
    """
    some = [i for i, row in enumerate(rows) if truncates(row.params)]
    if not some:
        return logits
    index = torch.tensor(some, device=logits.device)
    part = logits[index]  # [n, vocab_size]
    count, values = _num_kept(part, [rows[i] for i in some])
    threshold = values.gather(1, count[:, None] - 1)  # [n, 1]; the last logit kept
    above, equal = part > threshold, part == threshold
    num_equal = count[:, None] - above.sum(-1, keepdim=True)
    keep = above | (equal & (equal.cumsum(-1) <= num_equal))
    logits[index] = part.masked_fill(~keep, -torch.inf)
    return logits


def _num_kept(logits: Tensor, rows: Sequence["SamplingRow"]) -> tuple[Tensor, Tensor]:
    """How many of its best tokens each row keeps, [n] int64, and at least that many best logits, [n, m] descending."""
    vocab_size = logits.shape[-1]
    top_k = torch.tensor([min(row.params.top_k or vocab_size, vocab_size) for row in rows], device=logits.device)
    top_p = torch.tensor([row.params.top_p for row in rows], device=logits.device)
    min_p = torch.tensor([row.params.min_p for row in rows], device=logits.device)
    log_total = logits.logsumexp(dim=-1, keepdim=True)  # [n, 1]
    values = logits.topk(min(_NUM_CANDIDATES, vocab_size), dim=-1).values
    while True:
        mass = (values - log_total).exp().cumsum(dim=-1)  # [n, m]
        num_values = values.shape[-1]
        # With top-k, the nucleus is a share of the mass of those k.
        within = mass.gather(1, top_k.clamp(max=num_values)[:, None] - 1)
        total = torch.where(top_k[:, None] < vocab_size, within, torch.ones_like(within))
        before = torch.nn.functional.pad(mass[:, :-1], (1, 0))
        kept = (before < top_p[:, None] * total) | (top_p[:, None] >= 1.0)
        kept &= values >= values[:, :1] + min_p[:, None].log()
        kept &= torch.arange(num_values, device=logits.device) < top_k[:, None]
        if num_values == vocab_size or not bool(kept[:, -1].any()):
            # Each condition holds for a beginning of the row. A row of NaN keeps nothing; it must still name one.
            return kept.sum(dim=-1).clamp(min=1), values
        values = logits.sort(dim=-1, descending=True).values


def truncates(params: SamplingParams) -> bool:
    """Whether only some of the tokens may be drawn, by top-k, top-p or min-p."""
    return bool(params.top_k or params.min_p) or params.top_p < 1.0


def has_penalty(params: SamplingParams) -> bool:
    """Whether tokens that occurred before are less likely, or more."""
    return bool(params.presence_penalty or params.frequency_penalty) or params.repetition_penalty != 1.0


def _penalize(logits: Tensor, rows: Sequence["SamplingRow"]) -> Tensor:
    """Repetition, frequency and presence penalties. logits: [n, vocab_size]."""
    vocab_size, device = logits.shape[-1], logits.device
    in_output = _count([row.output_token_ids for row in rows], vocab_size, device)
    in_prompt = _count([row.prompt_token_ids for row in rows], vocab_size, device)
    repetition, frequency, presence = (
        torch.tensor([getattr(row.params, name) for row in rows], device=device)[:, None]
        for name in ("repetition_penalty", "frequency_penalty", "presence_penalty")
    )
    scale = torch.where(logits > 0, 1.0 / repetition, repetition)
    logits = torch.where((in_output + in_prompt) > 0, logits * scale, logits)
    return logits - frequency * in_output - presence * (in_output > 0)


def _count(token_ids: Sequence[npt.NDArray[np.int64]], vocab_size: int, device: torch.device) -> Tensor:
    """How often each token occurs in each row, [n, vocab_size] float32."""
    flat = torch.from_numpy(np.concatenate(token_ids)).to(device)
    row_ids = torch.from_numpy(np.repeat(np.arange(len(token_ids)), [len(ids) for ids in token_ids])).to(device)
    counts = torch.zeros(len(token_ids), vocab_size, device=device)
    return counts.index_put_((row_ids, flat), torch.ones((), device=device), accumulate=True)
