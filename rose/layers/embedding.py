"""The two ends of a language model: token ids to vectors, vectors to logits."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rose.layers.parameter import Parameter, ShardSpec, new_parameter

# Vocabulary rows that are widened to float32 at a time, where the device cannot accumulate and return float32 itself.
_WIDEN_ROWS = 8192


class Embedding(nn.Module):
    """A table of one vector per token id: weight [vocab_size, hidden_size]."""

    weight: Parameter

    def __init__(self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = new_parameter((vocab_size, hidden_size), dtype, ShardSpec(dim=0))

    def forward(self, token_ids: Tensor) -> Tensor:
        """[num_tokens] int64 -> [num_tokens, hidden_size]."""
        return F.embedding(token_ids, self.weight)


def unembed(hidden: Tensor, weight: Tensor) -> Tensor:
    """Float32 logits: hidden [n, hidden_size] times weight [vocab_size, hidden_size] -> [n, vocab_size].

    The product is not rounded to a narrower dtype on the way: in bfloat16 logits near 20 would be 0.125 apart, which
    makes ties out of different tokens.
    """
    if weight.dtype == torch.float32:
        return F.linear(hidden, weight)
    if hidden.is_cuda:
        return torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    logits = hidden.new_empty(hidden.shape[0], weight.shape[0], dtype=torch.float32)
    wide = hidden.float()
    for start in range(0, weight.shape[0], _WIDEN_ROWS):
        rows = slice(start, start + _WIDEN_ROWS)
        logits[:, rows] = wide @ weight[rows].float().t()
    return logits
