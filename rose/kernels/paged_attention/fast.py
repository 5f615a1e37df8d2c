"""Attention on Hopper: chooses between the fast backends, all under the op's contract."""

import torch
from torch import Tensor

from rose.kernels.cuda_module import num_sms
from rose.kernels.paged_attention.decode_triton import attention_decode_triton
from rose.kernels.paged_attention.launch import (
    LN_2,
    AttentionShape,
    decode_launch,
    heads_together,
    prefill_launch,
    uses_cuda_prefill,
)
from rose.kernels.paged_attention.prefill_sm90 import attention_prefill_sm90
from rose.kernels.paged_attention.prefill_triton import attention_prefill_triton


def supports(query: Tensor, key_cache: Tensor) -> bool:
    """Whether a fast backend fits: 16-bit tensors of a power-of-two head_dim and block_size from 16."""
    return query.element_size() == 2 and all(
        size >= 16 and size & (size - 1) == 0 for size in (query.shape[2], key_cache.shape[1])
    )


def paged_attention_fast(
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
    """See the op's contract."""
    if query.shape[0] == 0:
        return torch.empty_like(query, memory_format=torch.contiguous_format)
    shape = AttentionShape(
        num_requests=seq_lens.shape[0],
        max_query_len=max_query_len,
        max_kv_len=max_kv_len,
        num_q_heads=query.shape[1],
        num_kv_heads=key_cache.shape[2],
        head_dim=query.shape[2],
        block_size=key_cache.shape[1],
        sliding_window=sliding_window,
        is_bf16=query.dtype == torch.bfloat16,
        scores_in_log2=scale == LN_2,
    )
    if max_query_len == 1:
        return attention_decode_triton(
            query,
            key_cache,
            value_cache,
            block_table,
            seq_lens=seq_lens,
            sinks=sinks,
            scale=scale,
            sliding_window=sliding_window,
            launch=decode_launch(shape, num_sms(query.device.index)),
        )
    if uses_cuda_prefill(shape):
        return attention_prefill_sm90(
            query,
            key_cache,
            value_cache,
            block_table,
            cu_seqlens_q=cu_seqlens_q,
            seq_lens=seq_lens,
            sinks=sinks,
            sliding_window=sliding_window,
            heads_together=heads_together(shape),
        )
    return attention_prefill_triton(
        query,
        key_cache,
        value_cache,
        block_table,
        cu_seqlens_q=cu_seqlens_q,
        seq_lens=seq_lens,
        sinks=sinks,
        scale=scale,
        sliding_window=sliding_window,
        launch=prefill_launch(shape),
    )
