"""Rotary position embedding, by halves, in place.

With h = head_dim / 2, and c, s = the two halves of table[positions[t]], for every head and i < h:

    x[t, head, i], x[t, head, i + h] = x[t, head, i] * c[i] - x[t, head, i + h] * s[i],
                                       x[t, head, i + h] * c[i] + x[t, head, i] * s[i]

The pairs are (i, i + h), not neighbouring elements. The query is multiplied by query_scale before it is rounded, so
that attention need not scale its scores.

query: [num_tokens, num_q_heads, head_dim] and key: [num_tokens, num_kv_heads, head_dim], of one dtype out of float32,
bfloat16 and float16; rows may be strided, the last dimension is not. Both are overwritten. positions: [num_tokens]
int64, each below num_positions (not checked: that would synchronise). table: [num_positions, head_dim] float32,
cosines then sines, already multiplied by the concentration. Products and sums are in float32, rounded once.
Hardware: any. Source: Su et al., "RoFormer", arXiv 2104.09864; halves as in GPT-NeoX and gpt-oss.
"""

import torch
from torch import Tensor

from rose.kernels.contract import FLOATS, require, require_dtype, require_shape, require_unit_stride
from rose.kernels.hopper import on_hopper
from rose.kernels.rope.reference import rope_reference


def rope_(query: Tensor, key: Tensor, positions: Tensor, table: Tensor, *, query_scale: float = 1.0) -> None:
    """Rotate query and key in place; see the module's contract. Raises UnsupportedShape."""
    num_tokens, _, head_dim = query.shape
    require(head_dim % 2 == 0, "rope", f"head_dim must be even, got {head_dim}")
    require_shape("rope", "key", key, (num_tokens, None, head_dim))
    require_shape("rope", "positions", positions, (num_tokens,))
    require_shape("rope", "table", table, (None, head_dim))
    require_dtype("rope", "query", query, *FLOATS)
    require_dtype("rope", "key", key, query.dtype)
    require_dtype("rope", "positions", positions, torch.int64)
    require_dtype("rope", "table", table, torch.float32)
    require_unit_stride("rope", "query", query)
    require_unit_stride("rope", "key", key)
    adjacent_heads = query.stride(1) == head_dim and key.stride(1) == head_dim
    if on_hopper(query) and adjacent_heads and head_dim & (head_dim - 1) == 0 and num_tokens > 0:
        from rose.kernels.rope.rope_triton import rope_triton

        rope_triton(query, key, positions, table, query_scale)
    else:
        rope_reference(query, key, positions, table, query_scale)
