"""`moe_combine` in plain torch."""

import torch
from torch import Tensor


def moe_combine_reference(rows: Tensor, expert_weights: Tensor, pair_order: Tensor) -> Tensor:
    """See `op.py`."""
    by_pair = torch.empty_like(rows)
    by_pair[pair_order] = rows  # [num_tokens * k, hidden_size], back in order of token
    weighted = by_pair.float().unflatten(0, expert_weights.shape).mul_(expert_weights.unsqueeze(-1))
    combined: Tensor = weighted.sum(1)
    return combined.to(rows.dtype)
