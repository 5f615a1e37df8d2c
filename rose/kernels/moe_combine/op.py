"""Add up each token's expert outputs by their weights.

    y[t] = sum over j < k of weights[t, j] * rows[row_of[t, j]]

The operands are a `WeightedRows`, so that a sum can be handed on to an op that takes it in passing (`rmsnorm` does).
rows: [num_rows, hidden_size], contiguous, float32, bfloat16 or float16; rows that no pair names may hold anything.
row_of: [num_tokens, k] int32 or int64, below num_rows (not checked: that would synchronise). weights: [num_tokens, k]
float32. Both are contiguous. Returns y: [num_tokens, hidden_size] of rows' dtype. Nothing is written in place. The sum
is in float32, in order of j, so that it does not depend on which other tokens are in the batch, and is rounded once.
Hardware: any. Source: `MLPBlock` in openai/gpt-oss, gpt_oss/torch/model.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rose.kernels.contract import FLOATS, require_contiguous, require_dtype, require_shape
from rose.kernels.moe_combine.reference import moe_combine_reference


@dataclass(frozen=True, slots=True)
class WeightedRows:
    """A sum of rows for each token, not yet taken; fields as in the module's contract."""

    rows: Tensor
    row_of: Tensor
    weights: Tensor

    @staticmethod
    def in_order_of_expert(rows: Tensor, weights: Tensor, pair_order: Tensor) -> "WeightedRows":
        """From rows [num_tokens * k, hidden_size] in the order that `moe_routing` gives as pair_order."""
        row_of = torch.empty_like(pair_order)
        row_of[pair_order] = torch.arange(pair_order.numel(), device=pair_order.device)
        return WeightedRows(rows, row_of.view_as(weights), weights)

    def check(self) -> None:
        """Raise UnsupportedShape unless the contract holds."""
        require_shape("moe_combine", "rows", self.rows, (None, None))
        require_dtype("moe_combine", "rows", self.rows, *FLOATS)
        require_shape("moe_combine", "weights", self.weights, (None, None))
        require_dtype("moe_combine", "weights", self.weights, torch.float32)
        require_shape("moe_combine", "row_of", self.row_of, tuple(self.weights.shape))
        require_dtype("moe_combine", "row_of", self.row_of, torch.int32, torch.int64)
        for name, tensor in (("rows", self.rows), ("weights", self.weights), ("row_of", self.row_of)):
            require_contiguous("moe_combine", name, tensor)


def moe_combine(terms: WeightedRows) -> Tensor:
    """Take the sum; see the module's contract. Raises UnsupportedShape."""
    terms.check()
    return moe_combine_reference(terms.rows, terms.row_of, terms.weights)
