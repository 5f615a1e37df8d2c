"""A weight in the dtype of the activations."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rose.kernels.grouped_gemm.op import grouped_gemm
from rose.layers.parameter import ShardSpec, new_parameter
from rose.layers.quant.product import linear_float32


class Unquantized:
    """One parameter, `weight`. See `QuantMethod`."""

    def create_weight(self, layer: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, shard: ShardSpec) -> None:
        """Register `weight`, of the given shape and dtype."""
        layer.register_parameter("weight", new_parameter(shape, dtype, shard))

    def after_load(self, layer: nn.Module) -> None:
        """Nothing to rearrange."""

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """A plain product."""
        return F.linear(x, layer.get_parameter("weight"), bias)

    def apply_float32(self, layer: nn.Module, x: Tensor) -> Tensor:
        """A plain product whose sums are not rounded."""
        return linear_float32(x, layer.get_parameter("weight"))

    def apply_grouped(self, layer: nn.Module, x: Tensor, expert_offsets: Tensor, bias: Tensor | None) -> Tensor:
        """A plain product per expert."""
        return grouped_gemm(x, layer.get_parameter("weight"), expert_offsets, bias)
