"""Attention over the paged KV cache, between the projections."""

import math

import torch
from torch import Tensor, nn

from rose.kernels.paged_attention.op import paged_attention
from rose.layers.forward_batch import AttentionSpec, ForwardBatch
from rose.layers.parameter import Parameter, ShardSpec, new_parameter


class Attention(nn.Module):
    """Attends to its layer's cache, where the batch's own keys and values are already. Scores times head_dim**-0.5.

    The query comes multiplied by `query_scale`, which makes its products with keys logarithms to base 2: whoever
    rotates it multiplies in float32, before rounding, and the inner loop of attention has nothing left to scale.

    layer_index: which entry of `batch.layers` is this layer's. sinks: [num_q_heads] float32, one logit per head.
    """

    sinks: Parameter

    def __init__(self, layer_index: int, *, num_q_heads: int, spec: AttentionSpec) -> None:
        super().__init__()
        self.layer_index = layer_index
        self.spec = spec
        self.query_scale = spec.head_dim**-0.5 / math.log(2.0)
        self.sinks = new_parameter((num_q_heads,), torch.float32, ShardSpec(dim=0))

    def forward(self, query: Tensor, batch: ForwardBatch) -> Tensor:
        """[num_tokens, num_q_heads, head_dim] -> the same shape."""
        cache = batch.layers[self.layer_index]
        return paged_attention(
            query,
            cache.key,
            cache.value,
            cache.block_table,
            cu_seqlens_q=batch.cu_seqlens_q,
            seq_lens=batch.seq_lens,
            max_query_len=batch.max_query_len,
            max_kv_len=batch.max_kv_len,
            sinks=self.sinks,
            scale=math.log(2.0),
            sliding_window=self.spec.sliding_window,
        )
