"""`rope_` in Triton: one program per token turns all its heads."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rope_kernel(
    query_ptr, key_ptr, positions_ptr, table_ptr, query_stride, key_stride, query_scale,
    NUM_Q_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_HEADS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    HALF: tl.constexpr = HEAD_DIM // 2
    head = tl.arange(0, PADDED_HEADS)[:, None]
    d = tl.arange(0, HALF)[None, :]
    row = table_ptr + tl.load(positions_ptr + token) * HEAD_DIM
    cos = tl.load(row + d)
    sin = tl.load(row + HALF + d)
    is_query = head < NUM_Q_HEADS
    exists = head < NUM_Q_HEADS + NUM_KV_HEADS
    at = tl.where(
        is_query,
        query_ptr + token * query_stride + head * HEAD_DIM + d,
        key_ptr + token * key_stride + (head - NUM_Q_HEADS) * HEAD_DIM + d,
    )
    first = tl.load(at, mask=exists, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=exists, other=0.0).to(tl.float32)
    scale = tl.where(is_query, query_scale, 1.0)
    tl.store(at, ((first * cos - second * sin) * scale).to(query_ptr.dtype.element_ty), mask=exists)
    tl.store(at + HALF, ((second * cos + first * sin) * scale).to(query_ptr.dtype.element_ty), mask=exists)


def rope_triton(query: Tensor, key: Tensor, positions: Tensor, table: Tensor, query_scale: float) -> None:
    """See `op.py`, for a head_dim that is a power of two and heads that are neighbours in memory."""
    num_tokens, num_q_heads, head_dim = query.shape
    num_kv_heads = key.shape[1]
    _rope_kernel[(num_tokens,)](
        query, key, positions, table, query.stride(0), key.stride(0), query_scale,
        num_q_heads, num_kv_heads, head_dim, triton.next_power_of_2(num_q_heads + num_kv_heads),
        num_warps=4,
    )  # fmt: skip
