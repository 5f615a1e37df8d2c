"""`sample_tokens` in plain torch."""

import torch
from torch import Tensor


def sample_tokens_reference(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> Tensor:
    """See `op.py`."""
    best, token_ids = logits.max(dim=-1)  # NaN wins over every number
    is_random = temperatures > 0
    if bool(is_random.any()):
        scaled = (logits - best[:, None]) / torch.where(is_random, temperatures, 1.0)[:, None]
        cumulative = scaled.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)  # [num_rows, vocab_size]
        target = (uniforms * cumulative[:, -1])[:, None]
        # The limit only matters for rows of NaN.
        drawn = torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=logits.shape[1] - 1)
        token_ids = torch.where(is_random, drawn, token_ids)
    return torch.stack((token_ids, best.isfinite()))
