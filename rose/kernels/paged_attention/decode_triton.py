"""Decode attention in Triton: one query per request, positions split over programs, partial results combined.

A program holds all query heads of one KV head, padded to 16 rows for the matrix units, so that keys and values are read
once. Source of the split: Flash-Decoding (Dao et al., 2023). The first piece, and only it, starts at the sink.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rose.kernels.paged_attention.launch import DecodeLaunch

_LOG2_E = 1.4426950408889634
_MOST_SPLITS = 64


# The number of pieces follows the batch's size: a kernel for each would be compiled for each.
@triton.jit(do_not_specialize=["splits"])
def _decode_kernel(
    query_ptr, key_ptr, value_ptr, out_ptr, partial_ptr, stats_ptr, sinks_ptr, block_table_ptr, seq_lens_ptr,
    scale_log2, query_stride, block_table_stride, splits,
    NUM_Q_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr, ROWS: tl.constexpr, TILE_KEYS: tl.constexpr, IS_SPLIT: tl.constexpr,
    MIN_TILES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    GROUP: tl.constexpr = NUM_Q_HEADS // NUM_KV_HEADS
    seq_len = tl.load(seq_lens_ptr + request)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(seq_len - WINDOW, 0)
    begin = first // TILE_KEYS * TILE_KEYS  # so that a tile lies within one block
    share = tl.maximum(tl.cdiv(tl.cdiv(seq_len - begin, splits), TILE_KEYS), MIN_TILES) * TILE_KEYS
    low = begin + split * share
    high = tl.minimum(low + share, seq_len)
    row = tl.arange(0, ROWS)
    d = tl.arange(0, HEAD_DIM)
    head = kv_head * GROUP + row
    exists = row < GROUP
    query = tl.load(
        query_ptr + request * query_stride + head[:, None] * HEAD_DIM + d[None, :], mask=exists[:, None], other=0.0
    )
    # Not -inf, so that a piece without positions subtracts equal numbers.
    m = tl.full([ROWS], -1.0e30, tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    if split == 0:
        m = tl.load(sinks_ptr + head, mask=exists, other=0.0) * 1.4426950408889634
        l = tl.full([ROWS], 1.0, tl.float32)
    acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    table = block_table_ptr + request * block_table_stride
    for start in tl.range(low, high, TILE_KEYS, num_stages=STAGES):
        j = start + tl.arange(0, TILE_KEYS)
        valid = j < high
        if WINDOW > 0:
            valid = valid & (j >= first)
        if BLOCK_SIZE % TILE_KEYS == 0:
            block = tl.load(table + start // BLOCK_SIZE).to(tl.int64)
            slot = block * BLOCK_SIZE + start % BLOCK_SIZE + tl.arange(0, TILE_KEYS)
        else:
            block = tl.load(table + j // BLOCK_SIZE, mask=valid, other=0).to(tl.int64)
            slot = block * BLOCK_SIZE + j % BLOCK_SIZE
        at = (slot * NUM_KV_HEADS + kv_head) * HEAD_DIM
        key = tl.load(key_ptr + at[:, None] + d[None, :], mask=valid[:, None], other=0.0)
        scores = tl.where(valid[None, :], tl.dot(query, key.T) * scale_log2, float("-inf"))
        m_new = tl.maximum(m, tl.max(scores, 1))
        p = tl.exp2(scores - m_new[:, None])
        shrink = tl.exp2(m - m_new)
        l = l * shrink + tl.sum(p, 1)
        value = tl.load(value_ptr + at[:, None] + d[None, :], mask=valid[:, None], other=0.0)
        acc = tl.dot(p.to(value.dtype), value, acc * shrink[:, None])
        m = m_new
    if not IS_SPLIT:
        at_out = (request * NUM_Q_HEADS + head)[:, None] * HEAD_DIM + d[None, :]
        tl.store(out_ptr + at_out, (acc / l[:, None]).to(out_ptr.dtype.element_ty), mask=exists[:, None])
    else:
        piece = (request * NUM_Q_HEADS + head) * splits + split
        is_empty = (low >= high) & (split > 0)  # of such a piece, nobody reads the sum
        tl.store(partial_ptr + piece[:, None] * HEAD_DIM + d[None, :], acc, mask=exists[:, None] & (not is_empty))
        tl.store(stats_ptr + piece * 2, m, mask=exists)
        tl.store(stats_ptr + piece * 2 + 1, l, mask=exists)


@triton.jit(do_not_specialize=["splits"])
def _combine_kernel(partial_ptr, stats_ptr, out_ptr, splits, HEAD_DIM: tl.constexpr, MOST_SPLITS: tl.constexpr):
    piece = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, MOST_SPLITS)
    valid = split < splits
    d = tl.arange(0, HEAD_DIM)
    m = tl.load(stats_ptr + (piece * splits + split) * 2, mask=valid, other=-1.0e30)
    l = tl.load(stats_ptr + (piece * splits + split) * 2 + 1, mask=valid, other=0.0)
    weight = tl.exp2(m - tl.max(m, 0))
    at = (piece * splits + split)[:, None] * HEAD_DIM + d[None, :]
    acc = tl.load(partial_ptr + at, mask=(valid & (l > 0.0))[:, None], other=0.0)
    out = tl.sum(acc * weight[:, None], 0) / tl.sum(l * weight, 0)
    tl.store(out_ptr + piece * HEAD_DIM + d, out.to(out_ptr.dtype.element_ty))


def attention_decode_triton(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    *,
    seq_lens: Tensor,
    sinks: Tensor,
    scale: float,
    sliding_window: int | None,
    launch: DecodeLaunch,
) -> Tensor:
    """The op's contract for one query per request: row i of query is request i's. head_dim a power of two from 16."""
    num_requests, num_q_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = key_cache.shape
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    splits = launch.num_splits
    pieces = num_requests * num_q_heads * splits if splits > 1 else 0
    partial = torch.empty((pieces, head_dim), dtype=torch.float32, device=query.device)
    stats = torch.empty((pieces, 2), dtype=torch.float32, device=query.device)
    _decode_kernel[(num_requests, num_kv_heads, splits)](
        query,
        key_cache,
        value_cache,
        out,
        partial,
        stats,
        sinks,
        block_table,
        seq_lens,
        scale * _LOG2_E,
        query.stride(0),
        block_table.stride(0),
        splits,
        num_q_heads,
        num_kv_heads,
        head_dim,
        block_size,
        sliding_window or 0,
        max(16, triton.next_power_of_2(num_q_heads // num_kv_heads)),
        launch.tile_keys,
        splits > 1,
        launch.min_tiles,
        launch.num_stages,
        num_warps=launch.num_warps,
    )
    if splits > 1:
        _combine_kernel[(num_requests * num_q_heads,)](
            partial, stats, out, splits, head_dim, max(_MOST_SPLITS, triton.next_power_of_2(splits))
        )
    return out
