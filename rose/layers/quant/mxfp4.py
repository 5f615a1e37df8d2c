"""A weight that stays in MXFP4 and is expanded as it is used."""

import torch
from torch import Tensor, nn

from rose.errors import UnsupportedShape
from rose.kernels.grouped_gemm.op import grouped_gemm
from rose.layers.parameter import ShardSpec, new_parameter
from rose.layers.quant.product import linear_float32, linear_quantized
from rose.numerics.mxfp4 import BLOCK_BYTES, BLOCK_ELEMENTS, Mxfp4Tensor


class Mxfp4:
    """Two uint8 parameters: `blocks` [..., out, in / 32, 16] and `scales` [..., out, in / 32]. See `QuantMethod`."""

    def create_weight(self, layer: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, shard: ShardSpec) -> None:
        """Register `blocks` and `scales`. Raises UnsupportedShape when in_features is not a multiple of 32."""
        *outer, in_features = shape
        if in_features % BLOCK_ELEMENTS:
            raise UnsupportedShape(f"MXFP4 needs in_features in multiples of {BLOCK_ELEMENTS}, got {in_features}")
        scales_shape = (*outer, in_features // BLOCK_ELEMENTS)
        if shard.dim == len(shape) - 1:
            shard = shard.of_blocks(BLOCK_ELEMENTS)
        layer.register_parameter("blocks", new_parameter((*scales_shape, BLOCK_BYTES), torch.uint8, shard))
        layer.register_parameter("scales", new_parameter(scales_shape, torch.uint8, shard))

    def after_load(self, layer: nn.Module) -> None:
        """Nothing to rearrange: the reference reads the checkpoint's own layout."""

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """Expand, then multiply."""
        return linear_quantized(x, self._weight(layer), bias)

    def apply_float32(self, layer: nn.Module, x: Tensor) -> Tensor:
        """The same without bias, in float32."""
        return linear_float32(x, self._weight(layer))

    def apply_grouped(self, layer: nn.Module, x: Tensor, expert_offsets: Tensor, bias: Tensor | None) -> Tensor:
        """A product per expert; only the experts in use are expanded, one at a time."""
        return grouped_gemm(x, self._weight(layer), expert_offsets, bias)

    @staticmethod
    def _weight(layer: nn.Module) -> Mxfp4Tensor:
        return Mxfp4Tensor(layer.get_parameter("blocks"), layer.get_parameter("scales"))
