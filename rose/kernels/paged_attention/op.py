"""Attention of a ragged batch over a paged KV cache: causal, grouped heads, optional window, learned sinks.

Request i has cu_seqlens_q[i + 1] - cu_seqlens_q[i] queries, the last of its seq_lens[i] positions. For the query at
position p, head h, with kv head h // g, g = num_q_heads / num_kv_heads (groups of neighbouring heads share a kv head),
over the positions P = {j : j <= p, and j > p - sliding_window if there is a window}, which counts the current token:

    s[j] = scale * (query . key[j]);   m = max(sinks[h], max over P of s[j])
    out  = sum over P of exp(s[j] - m) * value[j]  /  (exp(sinks[h] - m) + sum over P of exp(s[j] - m))

The sink is one more logit without a value: it is in the denominator only, once per query, unscaled. A backend that
splits the positions starts the running maximum of one part, and only one, at the sink.

query: [num_tokens, num_q_heads, head_dim], rows may be strided, as block_table's may; the tokens of request i are rows
cu_seqlens_q[i] ... cu_seqlens_q[i + 1] - 1. key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim],
contiguous; all three of one dtype, float32, bfloat16 or float16. The batch's own keys and values are already written.
block_table: [num_requests, max_num_blocks] int32: entry j holds positions j * block_size ... of the request. Entries
outside every query's P may name any block and are not read. cu_seqlens_q: [num_requests + 1] int32. seq_lens:
[num_requests] int32. max_query_len, max_kv_len: bounds on the host that no request exceeds; 1 for max_query_len means
one query for each request. A launch depends on shapes and these bounds alone, so that it can be captured in a CUDA
graph whose replays read other lengths. sinks: [num_q_heads] float32.
Returns out: [num_tokens, num_q_heads, head_dim] of query's dtype, contiguous. Nothing is written in place.
Products, exponentials and sums are in float32, rounded once; the fast backends round the exponentials to the tensors'
dtype before they meet the values, and may read, and multiply by zero, slots of a request's blocks that no query sees:
their values must be finite numbers, as in a cache that started from zeros and that `rope_kv_write_` wrote.
Hardware: any; Hopper for the fast backends, which `launch.py` chooses between. The fastest wants scale == ln 2.
Source: Kwon et al., arXiv 2309.06180 (paging); Milakov and Gimelshein, arXiv 1805.02867 (the running maximum); `sdpa`
in openai/gpt-oss, gpt_oss/torch/model.py (sinks and window).
"""

import torch
from torch import Tensor

from rose.errors import UnsupportedShape
from rose.kernels.contract import FLOATS, require, require_contiguous, require_dtype, require_shape, require_unit_stride
from rose.kernels.hopper import on_hopper
from rose.kernels.paged_attention.reference import paged_attention_reference

_OP = "paged_attention"


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    *,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    max_query_len: int,
    max_kv_len: int,
    sinks: Tensor,
    scale: float,
    sliding_window: int | None,
) -> Tensor:
    """Attend with every query of the batch; see the module's contract. Raises UnsupportedShape."""
    require_shape(_OP, "query", query, (None, None, None))
    num_tokens, num_q_heads, head_dim = query.shape
    require_shape(_OP, "key_cache", key_cache, (None, None, None, head_dim))
    _, block_size, num_kv_heads, _ = key_cache.shape
    require_shape(_OP, "value_cache", value_cache, tuple(key_cache.shape))
    require(
        num_q_heads % num_kv_heads == 0, _OP, f"{num_q_heads} query heads do not divide over {num_kv_heads} kv heads"
    )
    require_shape(_OP, "block_table", block_table, (None, None))
    num_requests, max_num_blocks = block_table.shape
    require_shape(_OP, "cu_seqlens_q", cu_seqlens_q, (num_requests + 1,))
    require_shape(_OP, "seq_lens", seq_lens, (num_requests,))
    require_shape(_OP, "sinks", sinks, (num_q_heads,))
    require_dtype(_OP, "query", query, *FLOATS)
    require_dtype(_OP, "key_cache", key_cache, query.dtype)
    require_dtype(_OP, "value_cache", value_cache, query.dtype)
    require_dtype(_OP, "sinks", sinks, torch.float32)
    for name, tensor in (("block_table", block_table), ("cu_seqlens_q", cu_seqlens_q), ("seq_lens", seq_lens)):
        require_dtype(_OP, name, tensor, torch.int32)
    require_unit_stride(_OP, "query", query)
    is_packed = num_q_heads == 1 or query.stride(1) == head_dim
    require(is_packed, _OP, f"heads of query must be neighbours, got strides {query.stride()}")
    require_unit_stride(_OP, "block_table", block_table)
    require_contiguous(_OP, "key_cache", key_cache)
    require_contiguous(_OP, "value_cache", value_cache)
    for name, tensor in (("cu_seqlens_q", cu_seqlens_q), ("seq_lens", seq_lens), ("sinks", sinks)):
        require_contiguous(_OP, name, tensor)
    capacity = max_num_blocks * block_size
    if not 0 <= max_query_len <= max_kv_len <= capacity:
        raise UnsupportedShape(
            f"{_OP}: {max_query_len} queries with {max_kv_len} positions in a block table for {capacity}"
        )
    require(
        max_query_len != 1 or num_tokens == num_requests,
        _OP,
        f"{num_tokens} tokens are not one for each of {num_requests} requests",
    )
    require(sliding_window is None or sliding_window > 0, _OP, f"sliding_window must be positive, got {sliding_window}")
    if on_hopper(query):
        from rose.kernels.paged_attention.fast import paged_attention_fast, supports

        if supports(query, key_cache):
            return paged_attention_fast(
                query,
                key_cache,
                value_cache,
                block_table,
                cu_seqlens_q=cu_seqlens_q,
                seq_lens=seq_lens,
                max_query_len=max_query_len,
                max_kv_len=max_kv_len,
                sinks=sinks,
                scale=scale,
                sliding_window=sliding_window,
            )
    query_lens, kv_lens = _lengths(cu_seqlens_q, seq_lens, num_tokens, max_query_len, max_kv_len)
    return paged_attention_reference(
        query,
        key_cache,
        value_cache,
        block_table,
        query_lens=query_lens,
        kv_lens=kv_lens,
        sinks=sinks,
        scale=scale,
        sliding_window=sliding_window,
    )


def _lengths(
    cu_seqlens_q: Tensor, seq_lens: Tensor, num_tokens: int, max_query_len: int, max_kv_len: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Queries and positions of each request, as the reference wants them. Raises UnsupportedShape."""
    query_lens, kv_lens = tuple(cu_seqlens_q.diff().tolist()), tuple(seq_lens.tolist())
    if sum(query_lens) != num_tokens:
        raise UnsupportedShape(f"{_OP}: query lengths {query_lens} do not add up to {num_tokens} tokens")
    for num_queries, kv_len in zip(query_lens, kv_lens, strict=True):
        if not 0 <= num_queries <= min(kv_len, max_query_len) or kv_len > max_kv_len:
            raise UnsupportedShape(
                f"{_OP}: {num_queries} queries with {kv_len} positions, where at most {max_query_len} with "
                f"{max_kv_len} were announced"
            )
    return query_lens, kv_lens
