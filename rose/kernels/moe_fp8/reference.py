"""`moe_fp8` in plain torch, of the references of the ops it is made of."""

from torch import Tensor

from rose.kernels.grouped_gemm.op import grouped_gemm
from rose.kernels.moe_combine.op import WeightedRows
from rose.kernels.moe_routing.op import moe_routing
from rose.kernels.swiglu.op import swiglu
from rose.numerics.fp8 import E4M3, Fp8RowTensor

ACTIVATION_SCALE = 8.0


def moe_fp8_reference(
    x: Fp8RowTensor,
    router_logits: Tensor,
    gate_up: Fp8RowTensor,
    gate_up_bias: Tensor,
    down: Fp8RowTensor,
    down_bias: Tensor,
    *,
    experts_per_token: int,
    swiglu_alpha: float,
    swiglu_limit: float,
) -> WeightedRows:
    """See `op.py`; in float32 throughout, and so are the rows."""
    routing = moe_routing(router_logits, experts_per_token=experts_per_token)
    of_tokens = x.values.float() * x.scales.unsqueeze(1)
    rows = of_tokens.index_select(0, routing.pair_order // experts_per_token)
    activated = swiglu(
        grouped_gemm(rows, gate_up, routing.expert_offsets, gate_up_bias.float()),
        alpha=swiglu_alpha,
        limit=swiglu_limit,
    )
    rounded = (activated * ACTIVATION_SCALE).to(E4M3).float() / ACTIVATION_SCALE
    out = grouped_gemm(rounded, down, routing.expert_offsets, down_bias.float())
    return WeightedRows.in_order_of_expert(out, routing.expert_weights, routing.pair_order)
