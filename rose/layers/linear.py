"""Linear layers: one matrix, or one matrix per expert."""

import torch
from torch import Tensor, nn

from rose.layers.parameter import REPLICATED, Parameter, ShardSpec, new_parameter
from rose.layers.quant import Fp8Row, QuantMethod
from rose.numerics.fp8 import Fp8RowTensor


class Linear(nn.Module):
    """y = x @ weight.T + bias, with weight [out_features, in_features] stored as `quant` says."""

    bias: Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        dtype: torch.dtype,
        quant: QuantMethod,
        shard: ShardSpec = REPLICATED,
    ) -> None:
        super().__init__()
        self.quant = quant
        quant.create_weight(self, (out_features, in_features), dtype, shard)
        # A bias is as long as the output, so it is split with the output features or not at all.
        bias_shard = shard if shard.dim == 0 else REPLICATED
        self.bias = new_parameter((out_features,), dtype, bias_shard) if bias else None

    def after_load(self, device: torch.device) -> None:
        """Let the number format rearrange the weight."""
        self.quant.after_load(self)

    def takes_rounded(self, x: Tensor) -> bool:
        """Whether `forward` takes such an x rounded to FP8, as a norm can give it, and would round it itself if not."""
        return isinstance(self.quant, Fp8Row) and self.quant.takes_rounded(self, x)

    def forward(self, x: Tensor | Fp8RowTensor) -> Tensor:
        """[num_tokens, in_features] -> [num_tokens, out_features]."""
        if isinstance(x, Fp8RowTensor):
            return Fp8Row.apply_rounded(self, x, self.bias)
        return self.quant.apply(self, x, self.bias)


class GroupedLinear(nn.Module):
    """A linear layer per expert: weight [num_experts, out_features, in_features], bias [num_experts, out_features]."""

    bias: Parameter

    def __init__(
        self, num_experts: int, in_features: int, out_features: int, *, dtype: torch.dtype, quant: QuantMethod
    ) -> None:
        super().__init__()
        self.quant = quant
        shard = ShardSpec(dim=0, group="ep")
        quant.create_weight(self, (num_experts, out_features, in_features), dtype, shard)
        self.bias = new_parameter((num_experts, out_features), dtype, shard)

    def after_load(self, device: torch.device) -> None:
        """Let the number format rearrange the weight."""
        self.quant.after_load(self)

    def forward(self, x: Tensor, expert_offsets: Tensor) -> Tensor:
        """[num_rows, in_features], in order of expert, -> [num_rows, out_features]; see `grouped_gemm`."""
        return self.quant.apply_grouped(self, x, expert_offsets, self.bias)
