"""`rope_kv_write_` in Triton: one program per token turns all its heads."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rope_kv_write_kernel(
    query_ptr, key_ptr, value_ptr, positions_ptr, table_ptr, key_cache_ptr, value_cache_ptr, slots_ptr,
    query_stride, key_stride, value_stride, query_scale,
    NUM_Q_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_Q_HEADS: tl.constexpr,
    PADDED_KV_HEADS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    HALF: tl.constexpr = HEAD_DIM // 2
    d = tl.arange(0, HALF)[None, :]
    row = table_ptr + tl.load(positions_ptr + token) * HEAD_DIM
    cos = tl.load(row + d)
    sin = tl.load(row + HALF + d)

    head = tl.arange(0, PADDED_Q_HEADS)[:, None]
    exists = head < NUM_Q_HEADS
    at = query_ptr + token * query_stride + head * HEAD_DIM + d
    first = tl.load(at, mask=exists, other=0.0).to(tl.float32) * query_scale
    second = tl.load(at + HALF, mask=exists, other=0.0).to(tl.float32) * query_scale
    tl.store(at, (first * cos - second * sin).to(query_ptr.dtype.element_ty), mask=exists)
    tl.store(at + HALF, (second * cos + first * sin).to(query_ptr.dtype.element_ty), mask=exists)

    kv_head = tl.arange(0, PADDED_KV_HEADS)[:, None]
    kv_exists = kv_head < NUM_KV_HEADS
    within = kv_head * HEAD_DIM + d
    to = tl.load(slots_ptr + token) * (NUM_KV_HEADS * HEAD_DIM) + within
    value = value_ptr + token * value_stride + within
    first = tl.load(value, mask=kv_exists, other=0.0)
    second = tl.load(value + HALF, mask=kv_exists, other=0.0)
    are_finite = (tl.abs(first.to(tl.float32)) < float("inf")) & (tl.abs(second.to(tl.float32)) < float("inf"))
    is_finite = tl.min(are_finite.to(tl.int32), 1)[:, None] > 0
    tl.store(value_cache_ptr + to, tl.where(is_finite, first, 0.0).to(first.dtype), mask=kv_exists)
    tl.store(value_cache_ptr + to + HALF, tl.where(is_finite, second, 0.0).to(second.dtype), mask=kv_exists)
    key = key_ptr + token * key_stride + within
    first = tl.load(key, mask=kv_exists, other=0.0).to(tl.float32)
    second = tl.load(key + HALF, mask=kv_exists, other=0.0).to(tl.float32)
    turned = tl.where(is_finite, first * cos - second * sin, float("nan"))
    tl.store(key_cache_ptr + to, turned.to(key_ptr.dtype.element_ty), mask=kv_exists)
    turned = tl.where(is_finite, second * cos + first * sin, float("nan"))
    tl.store(key_cache_ptr + to + HALF, turned.to(key_ptr.dtype.element_ty), mask=kv_exists)


def rope_kv_write_triton(
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
    """See `op.py`, for a head_dim that is a power of two and heads that are neighbours in memory."""
    num_tokens, num_q_heads, head_dim = query.shape
    num_kv_heads = key.shape[1]
    _rope_kv_write_kernel[(num_tokens,)](
        query, key, value, positions, table, key_cache, value_cache, slot_mapping,
        query.stride(0), key.stride(0), value.stride(0), query_scale,
        num_q_heads, num_kv_heads, head_dim,
        triton.next_power_of_2(num_q_heads), triton.next_power_of_2(num_kv_heads),
        num_warps=4,
    )  # fmt: skip
