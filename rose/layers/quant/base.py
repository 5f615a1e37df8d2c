"""What a layer asks of a number format: to hold its weight and to multiply by it."""

from typing import Protocol

import torch
from torch import Tensor, nn

from rose.layers.parameter import ShardSpec


class QuantMethod(Protocol):
    """How a linear layer's weight is stored and used.

    A method keeps nothing of a layer: `create_weight` registers parameters on it, the others find them there.
    """

    def create_weight(self, layer: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, shard: ShardSpec) -> None:
        """Register the parameters for a weight of logical shape [..., out_features, in_features].

        dtype: of the activations that the weight will meet.
        """
        ...

    def after_load(self, layer: nn.Module) -> None:
        """Rearrange the filled parameters for the device they are on. Called once."""
        ...

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """[num_tokens, in_features] -> [num_tokens, out_features], for a weight of two dimensions."""
        ...

    def apply_float32(self, layer: nn.Module, x: Tensor) -> Tensor:
        """`apply` without bias and without rounding the result: -> [num_tokens, out_features] float32."""
        ...

    def apply_grouped(self, layer: nn.Module, x: Tensor, expert_offsets: Tensor, bias: Tensor | None) -> Tensor:
        """`grouped_gemm` with the layer's weight, which has three dimensions."""
        ...
