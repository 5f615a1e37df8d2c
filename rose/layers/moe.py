"""A mixture of experts: a router, and experts that are clamped SwiGLU networks with biases."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rose.kernels.linear_fp8.op import round_to_fp8
from rose.kernels.moe_combine.op import WeightedRows
from rose.kernels.moe_fp8 import op as moe_fp8_op
from rose.kernels.moe_routing.op import moe_routing
from rose.kernels.swiglu.op import swiglu
from rose.layers.linear import GroupedLinear, Linear
from rose.layers.quant import Fp8Row, QuantMethod, Unquantized
from rose.numerics.fp8 import Fp8RowTensor


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """Sizes of the layer, and the constants of its activation (see the `swiglu` op)."""

    hidden_size: int
    intermediate_size: int
    num_experts: int
    experts_per_token: int
    swiglu_alpha: float
    swiglu_limit: float


class MoE(nn.Module):
    """Each token goes to the `experts_per_token` experts of largest router logit, weighted by a softmax over these.

    The router is never quantized. Rows of gate_up are interleaved: even rows are the gate, odd rows up.
    """

    def __init__(self, config: MoEConfig, *, dtype: torch.dtype, expert_quant: QuantMethod) -> None:
        super().__init__()
        self.config = config
        hidden_size, intermediate_size, num_experts = config.hidden_size, config.intermediate_size, config.num_experts
        self.router = Linear(hidden_size, num_experts, bias=True, dtype=dtype, quant=Unquantized())
        self.gate_up = GroupedLinear(num_experts, hidden_size, 2 * intermediate_size, dtype=dtype, quant=expert_quant)
        self.down = GroupedLinear(num_experts, intermediate_size, hidden_size, dtype=dtype, quant=expert_quant)

    def takes_rounded(self, x: Tensor) -> bool:
        """Whether the experts work on such an x rounded to FP8; then `forward` need not round it if it comes so too."""
        quant = self.gate_up.quant
        return (
            isinstance(quant, Fp8Row)
            and quant.round_activations
            and moe_fp8_op.supports(x, Fp8Row.weight(self.gate_up), swiglu_limit=self.config.swiglu_limit)
        )

    def forward(self, x: Tensor, rounded: Fp8RowTensor | None = None) -> WeightedRows:
        """[num_tokens, hidden_size] -> each token's expert outputs, yet to be added up; see `moe_combine`.

        rounded: x as `round_to_fp8` gives it, if the experts take that.
        """
        experts_per_token = self.config.experts_per_token
        router_logits = self.router(x)
        if self.takes_rounded(x):
            return moe_fp8_op.moe_fp8(
                round_to_fp8(x) if rounded is None else rounded,
                router_logits,
                Fp8Row.weight(self.gate_up),
                self.gate_up.bias,
                Fp8Row.weight(self.down),
                self.down.bias,
                experts_per_token=experts_per_token,
                swiglu_alpha=self.config.swiglu_alpha,
            )
        routing = moe_routing(router_logits, experts_per_token=experts_per_token)
        rows = x.index_select(0, routing.pair_order // experts_per_token)  # [num_tokens * k, hidden_size]
        activated = swiglu(
            self.gate_up(rows, routing.expert_offsets), alpha=self.config.swiglu_alpha, limit=self.config.swiglu_limit
        )
        out = self.down(activated, routing.expert_offsets)
        return WeightedRows.in_order_of_expert(out, routing.expert_weights, routing.pair_order)
