"""`rope_kv_write_` in plain torch."""

import math

import torch
from torch import Tensor


def rope_kv_write_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    table: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    query_scale: float,
) -> None:
    """See `op.py`."""
    rows = table.index_select(0, positions).unsqueeze(1)  # [num_tokens, 1, head_dim] f32
    query.copy_(_rotated(query.float() * query_scale, rows))
    is_finite = value.isfinite().all(-1, keepdim=True)  # [num_tokens, num_kv_heads, 1]
    rotated = _rotated(key.float(), rows).to(key.dtype)
    key_cache.flatten(0, 1).index_copy_(0, slot_mapping, rotated.where(is_finite, math.nan))
    value_cache.flatten(0, 1).index_copy_(0, slot_mapping, value.where(is_finite, 0.0))


def _rotated(x: Tensor, rows: Tensor) -> Tensor:
    (cos, sin), (first, second) = rows.chunk(2, dim=-1), x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
