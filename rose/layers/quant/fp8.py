"""Weights in FP8 E4M3 with power-of-two scales, and activations rounded to FP8 to meet them.

What is computed, and what a fast kernel may be compared with: y = round(x) @ weight.T + bias, where weight is exactly
what its E4M3 numbers and scales say, round is `round_tokens` (one scale per token) for row scales and
`round_token_groups` (one for 1 x 128) for block scales, and sums are in float32. So a product is two E4M3 numbers and
two powers of two: the scales can be applied after the sum (row) or per 128 features (block) without another rounding.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rose.kernels.grouped_gemm.op import grouped_gemm
from rose.kernels.linear_fp8 import op as linear_fp8_op
from rose.layers.parameter import ShardSpec, new_parameter
from rose.layers.quant.product import linear_float32, linear_quantized
from rose.numerics.format import Fp8BlockFormat, Fp8RowFormat
from rose.numerics.fp8 import BLOCK, Fp8BlockTensor, Fp8RowTensor, round_token_groups, round_tokens


@dataclass(frozen=True, slots=True)
class Fp8Row:
    """Parameters `weight` [..., out, in] float8_e4m3fn and `row_scales` [..., out] float32; a scale per token of x.

    round_activations: False multiplies by x as it is, which tells what the weights alone cost. See `QuantMethod`.
    """

    round_activations: bool = True

    def create_weight(self, layer: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, shard: ShardSpec) -> None:
        """Register `weight` and `row_scales`."""
        weight, scales = Fp8RowFormat().parts(shape)
        layer.register_parameter(weight.suffix, new_parameter(weight.shape, weight.dtype, shard))
        # Split by input features, every rank still has all rows.
        scales_shard = ShardSpec() if shard.dim == len(shape) - 1 else shard
        layer.register_parameter(scales.suffix, new_parameter(scales.shape, scales.dtype, scales_shard))

    def after_load(self, layer: nn.Module) -> None:
        """Nothing to rearrange: the reference reads the parameters as they are."""

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """Round x and multiply: in FP8 where the hardware can, else with the weight expanded."""
        if self.takes_rounded(layer, x):
            return self.apply_rounded(layer, linear_fp8_op.round_to_fp8(x), bias)
        return linear_quantized(self._round(x), self.weight(layer), bias)

    def takes_rounded(self, layer: nn.Module, x: Tensor) -> bool:
        """Whether `apply` rounds such an x to FP8 before all else, so that it may come rounded, to `apply_rounded`."""
        return self.round_activations and linear_fp8_op.supports(x, self.weight(layer))

    @staticmethod
    def apply_rounded(layer: nn.Module, x: Fp8RowTensor, bias: Tensor | None) -> Tensor:
        """Multiply in FP8 what has been rounded: [num_tokens, in_features] -> [num_tokens, out_features]."""
        return linear_fp8_op.linear_fp8(x, Fp8Row.weight(layer), bias)

    def apply_float32(self, layer: nn.Module, x: Tensor) -> Tensor:
        """The same without bias, in float32."""
        if self.takes_rounded(layer, x):
            return linear_fp8_op.linear_fp8_float32(linear_fp8_op.round_to_fp8(x), self.weight(layer))
        return linear_float32(self._round(x), self.weight(layer))

    def apply_grouped(self, layer: nn.Module, x: Tensor, expert_offsets: Tensor, bias: Tensor | None) -> Tensor:
        """Round x, then a product per expert; only the experts in use are expanded, one at a time."""
        return grouped_gemm(self._round(x), self.weight(layer), expert_offsets, bias)

    def _round(self, x: Tensor) -> Tensor:
        return round_tokens(x) if self.round_activations else x

    @staticmethod
    def weight(layer: nn.Module) -> Fp8RowTensor:
        """A layer's weight of this format."""
        return Fp8RowTensor(layer.get_parameter("weight"), layer.get_parameter("row_scales"))


@dataclass(frozen=True, slots=True)
class Fp8Block:
    """Parameters `weight` [..., out, in] float8_e4m3fn and `block_scales` [..., out / 128, in / 128] float32.

    Sizes of the scales are rounded up. x has a scale for every 128 features of a token. round_activations: as in
    `Fp8Row`. See `QuantMethod`.
    """

    round_activations: bool = True

    def create_weight(self, layer: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, shard: ShardSpec) -> None:
        """Register `weight` and `block_scales`."""
        weight, scales = Fp8BlockFormat().parts(shape)
        scales_shard = shard
        if shard.dim is not None and shard.dim >= len(shape) - 2:  # a dimension that has blocks
            shard, scales_shard = shard.keeping(BLOCK), shard.of_blocks(BLOCK)
        layer.register_parameter(weight.suffix, new_parameter(weight.shape, weight.dtype, shard))
        layer.register_parameter(scales.suffix, new_parameter(scales.shape, scales.dtype, scales_shard))

    def after_load(self, layer: nn.Module) -> None:
        """Nothing to rearrange: the reference reads the parameters as they are."""

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """Round x, expand the weight, multiply."""
        return linear_quantized(self._round(x), self._weight(layer), bias)

    def apply_float32(self, layer: nn.Module, x: Tensor) -> Tensor:
        """The same without bias, in float32."""
        return linear_float32(self._round(x), self._weight(layer))

    def apply_grouped(self, layer: nn.Module, x: Tensor, expert_offsets: Tensor, bias: Tensor | None) -> Tensor:
        """Round x, then a product per expert; only the experts in use are expanded, one at a time."""
        return grouped_gemm(self._round(x), self._weight(layer), expert_offsets, bias)

    def _round(self, x: Tensor) -> Tensor:
        return round_token_groups(x) if self.round_activations else x

    @staticmethod
    def _weight(layer: nn.Module) -> Fp8BlockTensor:
        return Fp8BlockTensor(layer.get_parameter("weight"), layer.get_parameter("block_scales"))
