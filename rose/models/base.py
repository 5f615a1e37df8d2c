"""What the engine asks of a model."""

from typing import Protocol

import torch
from torch import Tensor

from rose.layers.forward_batch import AttentionSpec, ForwardBatch


class CausalLM(Protocol):
    """A decoder-only language model over a paged KV cache. Stateless between calls: all state is in the batch."""

    @property
    def vocab_size(self) -> int:
        """Rows of the unembedding: token ids are below it."""
        ...

    @property
    def max_position(self) -> int:
        """Positions the model is made for: the longest context."""
        ...

    @property
    def attention_specs(self) -> tuple[AttentionSpec, ...]:
        """One entry per layer, in order."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a text by the checkpoint's own config; may be empty."""
        ...

    @property
    def num_parameters(self) -> int:
        """Weights, counted as numbers whatever format they are stored in."""
        ...

    @property
    def device(self) -> torch.device:
        """Where weights and KV cache are."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of activations and KV cache."""
        ...

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Write the batch's keys and values, return the last hidden states, [num_tokens, hidden_size]."""
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits of the given rows: [n, hidden_size] -> [n, vocab_size] float32."""
        ...
