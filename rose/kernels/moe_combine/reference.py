"""`moe_combine` in plain torch."""

from torch import Tensor


def moe_combine_reference(rows: Tensor, row_of: Tensor, weights: Tensor) -> Tensor:
    """See `op.py`."""
    by_pair = rows.index_select(0, row_of.flatten()).float().unflatten(0, row_of.shape)  # [num_tokens, k, hidden_size]
    combined: Tensor = by_pair.mul_(weights.unsqueeze(-1)).sum(1)
    return combined.to(rows.dtype)
