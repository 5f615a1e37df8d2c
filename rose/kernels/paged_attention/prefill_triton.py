"""Prefill attention in Triton: any group size, any power-of-two head_dim, with or without a window.

One program per tile of queries and query head, heads fastest in the grid, so that heads that share keys and values meet
them in the L2 cache. Under a window a tile reads only its queries' windows: O(num_tokens * window).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from rose.kernels.paged_attention.launch import PrefillLaunch

_LOG2_E = 1.4426950408889634


@triton.jit
def _attend(
    acc, m, l, query, key_desc, value_desc, table, begin, end, kv_head, position, first, seq_len, scale_log2,
    TILE_KEYS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr,
    MASKED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    for start in tl.range(begin, end, TILE_KEYS, num_stages=STAGES):
        block = tl.load(table + start // BLOCK_SIZE)
        key = key_desc.load([block, start % BLOCK_SIZE, kv_head, 0]).reshape(TILE_KEYS, HEAD_DIM)
        scores = tl.dot(query, key.T) * scale_log2
        if MASKED:
            j = start + tl.arange(0, TILE_KEYS)
            visible = j[None, :] <= position[:, None]
            if WINDOW > 0:
                visible = visible & (j[None, :] > position[:, None] - WINDOW)
            scores = tl.where(visible, scores, float("-inf"))
        m_new = tl.maximum(m, tl.max(scores, 1))
        p = tl.exp2(scores - m_new[:, None])
        shrink = tl.exp2(m - m_new)
        l = l * shrink + tl.sum(p, 1)
        value = value_desc.load([block, start % BLOCK_SIZE, kv_head, 0]).reshape(TILE_KEYS, HEAD_DIM)
        if MASKED:  # what no query of the tile sees may be anything, and 0 x NaN is NaN
            j = start + tl.arange(0, TILE_KEYS)
            seen = j < seq_len
            if WINDOW > 0:
                seen = seen & (j > first - WINDOW)
            value = tl.where(seen[:, None], value, 0.0)
        acc = tl.dot(p.to(value.dtype), value, acc * shrink[:, None])
        m = m_new
    return acc, m, l


@triton.jit
def _prefill_kernel(
    query_ptr, key_desc, value_desc, out_ptr, sinks_ptr, block_table_ptr, cu_seqlens_q_ptr, seq_lens_ptr,
    num_requests, scale_log2, query_stride, block_table_stride,
    NUM_Q_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr, TILE_QUERIES: tl.constexpr, TILE_KEYS: tl.constexpr, SEARCH_STEPS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)  # the last rows see the most keys: first
    # Request i owns tiles cu_seqlens_q[i] // TILE_QUERIES + i ...: find the last request that starts at or before.
    low = 0
    high = num_requests - 1
    for _ in tl.static_range(SEARCH_STEPS):
        middle = (low + high + 1) // 2
        starts_before = tl.load(cu_seqlens_q_ptr + middle) // TILE_QUERIES + middle <= tile
        low = tl.where(starts_before, middle, low)
        high = tl.where(starts_before, high, middle - 1)
    request = low
    q_begin = tl.load(cu_seqlens_q_ptr + request)
    q_len = tl.load(cu_seqlens_q_ptr + request + 1) - q_begin
    first_row = (tile - (q_begin // TILE_QUERIES + request)) * TILE_QUERIES
    if first_row >= q_len:
        return
    seq_len = tl.load(seq_lens_ptr + request)
    rows = first_row + tl.arange(0, TILE_QUERIES)
    position = seq_len - q_len + rows
    first = seq_len - q_len + first_row
    end = tl.minimum(first + TILE_QUERIES, seq_len)
    kv_head = head // (NUM_Q_HEADS // NUM_KV_HEADS)
    d = tl.arange(0, HEAD_DIM)
    exists = (rows < q_len)[:, None]
    token = (q_begin + rows).to(tl.int64)[:, None]
    query = tl.load(query_ptr + token * query_stride + head * HEAD_DIM + d[None, :], mask=exists, other=0.0)
    table = block_table_ptr + request.to(tl.int64) * block_table_stride
    # The sink is one more key, with this score and value zero: the running maximum and sum start from it.
    m = tl.zeros([TILE_QUERIES], tl.float32) + tl.load(sinks_ptr + head) * 1.4426950408889634
    l = tl.full([TILE_QUERIES], 1.0, tl.float32)
    acc = tl.zeros([TILE_QUERIES, HEAD_DIM], tl.float32)
    if WINDOW > 0:
        begin = tl.maximum(first - WINDOW + 1, 0) // TILE_KEYS * TILE_KEYS
    else:
        begin = (first + 1) // TILE_KEYS * TILE_KEYS
        acc, m, l = _attend(
            acc, m, l, query, key_desc, value_desc, table, 0, begin, kv_head, position, first, seq_len, scale_log2,
            TILE_KEYS, HEAD_DIM, BLOCK_SIZE, WINDOW, False, STAGES,
        )  # fmt: skip
    acc, m, l = _attend(
        acc, m, l, query, key_desc, value_desc, table, begin, end, kv_head, position, first, seq_len, scale_log2,
        TILE_KEYS, HEAD_DIM, BLOCK_SIZE, WINDOW, True, STAGES,
    )  # fmt: skip
    out = (acc / l[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + (token * NUM_Q_HEADS + head) * HEAD_DIM + d[None, :], out, mask=exists)


def attention_prefill_triton(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    *,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    sinks: Tensor,
    scale: float,
    sliding_window: int | None,
    launch: PrefillLaunch,
) -> Tensor:
    """The op's contract, for tensors of 16 or 32 bits, head_dim a power of two from 16, block_size one from 16."""
    num_tokens, num_q_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = key_cache.shape
    num_requests = seq_lens.numel()
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    box = [1, launch.tile_keys, 1, head_dim]
    options = {} if launch.max_registers is None else {"maxnreg": launch.max_registers}
    _prefill_kernel[(num_q_heads, num_tokens // launch.tile_queries + num_requests)](
        query,
        TensorDescriptor.from_tensor(key_cache, box),
        TensorDescriptor.from_tensor(value_cache, box),
        out,
        sinks,
        block_table,
        cu_seqlens_q,
        seq_lens,
        num_requests,
        scale * _LOG2_E,
        query.stride(0),
        block_table.stride(0),
        num_q_heads,
        num_kv_heads,
        head_dim,
        block_size,
        sliding_window or 0,
        launch.tile_queries,
        launch.tile_keys,
        max(1, num_requests - 1).bit_length(),
        launch.num_stages,
        num_warps=launch.num_warps,
        **options,
    )
    return out
