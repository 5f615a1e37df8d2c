"""Add up each token's expert outputs by their weights.

    y[t] = sum over j < k of expert_weights[t, j] * rows[i]      where pair_order[i] = t * k + j

rows: [num_tokens * k, hidden_size], contiguous, float32, bfloat16 or float16, in order of expert. expert_weights:
[num_tokens, k] float32. pair_order: [num_tokens * k] int64, a permutation, as `moe_routing` gives it. Returns y:
[num_tokens, hidden_size] of rows' dtype. Nothing is written in place. The sum is in float32, in order of j, so that it
does not depend on which other tokens are in the batch, and is rounded once.
Hardware: any. Source: `MLPBlock` in openai/gpt-oss, gpt_oss/torch/model.py.
"""

import torch
from torch import Tensor

from rose.kernels.contract import FLOATS, require_dtype, require_shape
from rose.kernels.moe_combine.reference import moe_combine_reference


def moe_combine(rows: Tensor, expert_weights: Tensor, pair_order: Tensor) -> Tensor:
    """Combine expert outputs; see the module's contract. Raises UnsupportedShape."""
    require_shape("moe_combine", "expert_weights", expert_weights, (None, None))
    require_dtype("moe_combine", "expert_weights", expert_weights, torch.float32)
    require_shape("moe_combine", "rows", rows, (expert_weights.numel(), None))
    require_dtype("moe_combine", "rows", rows, *FLOATS)
    require_shape("moe_combine", "pair_order", pair_order, (expert_weights.numel(),))
    require_dtype("moe_combine", "pair_order", pair_order, torch.int64)
    return moe_combine_reference(rows, expert_weights, pair_order)
