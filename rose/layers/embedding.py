"""The two ends of a language model: token ids to vectors, vectors to logits."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rose.layers.parameter import Parameter, ShardSpec, new_parameter
from rose.layers.quant import QuantMethod, Unquantized


class Embedding(nn.Module):
    """A table of one vector per token id: weight [vocab_size, hidden_size]."""

    weight: Parameter

    def __init__(self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = new_parameter((vocab_size, hidden_size), dtype, ShardSpec(dim=0))

    def forward(self, token_ids: Tensor) -> Tensor:
        """[num_tokens] int64 -> [num_tokens, hidden_size]."""
        return F.embedding(token_ids, self.weight)

    def unembed(self, hidden: Tensor) -> Tensor:
        """Logits of a model whose two ends share the table: [n, hidden_size] -> [n, vocab_size] float32."""
        return Unquantized().apply_float32(self, hidden)


class Unembedding(nn.Module):
    """Float32 logits of hidden states: a weight [vocab_size, hidden_size], stored as `quant` says.

    The product is not rounded to a narrower dtype on the way: in bfloat16 logits near 20 would be 0.125 apart, which
    makes ties out of different tokens.
    """

    def __init__(self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype, quant: QuantMethod) -> None:
        super().__init__()
        self.quant = quant
        quant.create_weight(self, (vocab_size, hidden_size), dtype, ShardSpec(dim=0))

    def after_load(self, device: torch.device) -> None:
        """Let the number format rearrange the weight."""
        self.quant.after_load(self)

    def forward(self, hidden: Tensor) -> Tensor:
        """[n, hidden_size] -> [n, vocab_size] float32."""
        return self.quant.apply_float32(self, hidden)
