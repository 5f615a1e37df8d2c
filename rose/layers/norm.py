"""Root-mean-square normalization with a learned weight."""

import torch
from torch import Tensor, nn

from rose.kernels.moe_combine.op import WeightedRows
from rose.kernels.rmsnorm.op import Normalized, NormForm, add_rmsnorm_, rmsnorm
from rose.layers.parameter import Parameter, new_parameter


class RMSNorm(nn.Module):
    """See the `rmsnorm` op. The weight is float32 whatever the model's dtype, since the op multiplies in float32."""

    weight: Parameter

    def __init__(self, hidden_size: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = new_parameter((hidden_size,), torch.float32)

    def forward(self, x: Tensor, add: Tensor | WeightedRows | None = None, *, form: NormForm = "plain") -> Normalized:
        """[num_tokens, hidden_size] -> the same shape, in the form that what follows takes.

        add: what is first added to x, the residual stream, in place.
        """
        if add is None:
            return rmsnorm(x, self.weight, eps=self.eps, form=form)
        return add_rmsnorm_(x, add, self.weight, eps=self.eps, form=form)
