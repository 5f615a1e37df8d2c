"""Root-mean-square normalization with a learned weight."""

import torch
from torch import Tensor, nn

from rose.kernels.rmsnorm.op import add_rmsnorm_, rmsnorm
from rose.layers.parameter import Parameter, new_parameter


class RMSNorm(nn.Module):
    """See the `rmsnorm` op. The weight is float32 whatever the model's dtype, since the op multiplies in float32."""

    weight: Parameter

    def __init__(self, hidden_size: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = new_parameter((hidden_size,), torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        """[num_tokens, hidden_size] -> the same shape and dtype."""
        return rmsnorm(x, self.weight, eps=self.eps)

    def add_(self, x: Tensor, add: Tensor) -> Tensor:
        """Add to the residual stream x in place, and normalize the sum."""
        return add_rmsnorm_(x, add, self.weight, eps=self.eps)
