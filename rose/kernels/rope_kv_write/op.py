"""Rotary position embedding by halves, with the keys and values going straight into a paged KV cache.

With h = head_dim / 2, and c, s = the two halves of table[positions[t]], rotation is, for every head and i < h:

    rotated[t, head, i], rotated[t, head, i + h] = x[t, head, i] * c[i] - x[t, head, i + h] * s[i],
                                                   x[t, head, i + h] * c[i] + x[t, head, i] * s[i]

    query[t]                                            = query_scale * rotated query[t], in place
    key_cache[slot // block_size, slot % block_size]    = rotated key[t]        with slot = slot_mapping[t]
    value_cache[slot // block_size, slot % block_size]  = value[t]

The pairs are (i, i + h), not neighbouring elements. The query is scaled before it is rounded, so that attention need
not scale its scores. Where value[t, head] holds NaN or infinity, zeros are written for it and NaN for its key: whoever
sees the token gets NaN as before, but attention may multiply values that it does not see by zero, and a block's next
owner must get nothing of what failed in it.

query: [num_tokens, num_q_heads, head_dim], key and value: [num_tokens, num_kv_heads, head_dim], of one dtype out of
float32, bfloat16 and float16; rows may be strided, the last dimension is not. key and value are left alone. All else is
contiguous. key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim], of that dtype; no other slot is
touched. positions: [num_tokens] int64, each below num_positions; slot_mapping: [num_tokens] int64, all different (else
the result is either one's); neither is checked, that would synchronise. table: [num_positions, head_dim] float32,
cosines then sines, already multiplied by the concentration. Products and sums are in float32, rounded once.
Hardware: any. Source: Su et al., "RoFormer", arXiv 2104.09864; halves as in GPT-NeoX and gpt-oss; vLLM's paged KV
cache, Kwon et al., arXiv 2309.06180.
"""

import torch
from torch import Tensor

from rose.kernels.contract import FLOATS, require, require_contiguous, require_dtype, require_shape, require_unit_stride
from rose.kernels.hopper import on_hopper
from rose.kernels.rope_kv_write.reference import rope_kv_write_reference

_OP = "rope_kv_write"


def rope_kv_write_(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    table: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    query_scale: float = 1.0,
) -> None:
    """Rotate, and write into the cache; see the module's contract. Raises UnsupportedShape."""
    num_tokens, _, head_dim = query.shape
    require(head_dim % 2 == 0, _OP, f"head_dim must be even, got {head_dim}")
    require_shape(_OP, "key", key, (num_tokens, None, head_dim))
    require_shape(_OP, "value", value, tuple(key.shape))
    require_shape(_OP, "positions", positions, (num_tokens,))
    require_shape(_OP, "table", table, (None, head_dim))
    require_shape(_OP, "key_cache", key_cache, (None, None, *key.shape[1:]))
    require_shape(_OP, "value_cache", value_cache, tuple(key_cache.shape))
    require_shape(_OP, "slot_mapping", slot_mapping, (num_tokens,))
    require_dtype(_OP, "query", query, *FLOATS)
    for name, tensor in (("key", key), ("value", value), ("key_cache", key_cache), ("value_cache", value_cache)):
        require_dtype(_OP, name, tensor, query.dtype)
    require_dtype(_OP, "positions", positions, torch.int64)
    require_dtype(_OP, "slot_mapping", slot_mapping, torch.int64)
    require_dtype(_OP, "table", table, torch.float32)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        require_unit_stride(_OP, name, tensor)
    for name, tensor in (("positions", positions), ("slot_mapping", slot_mapping), ("table", table)):
        require_contiguous(_OP, name, tensor)
    require_contiguous(_OP, "key_cache", key_cache)
    require_contiguous(_OP, "value_cache", value_cache)
    adjacent_heads = all(x.stride(1) == head_dim for x in (query, key, value))
    if on_hopper(query) and adjacent_heads and head_dim & (head_dim - 1) == 0 and num_tokens > 0:
        from rose.kernels.rope_kv_write.rope_kv_write_triton import rope_kv_write_triton as backend
    else:
        backend = rope_kv_write_reference
    backend(query, key, value, positions, table, key_cache, value_cache, slot_mapping, query_scale)
