"""A mixture of experts with FP8 weights and activations, from router logits to each token's expert outputs.

With w[t, j], e[t, j] = softmax and ids of the k largest router_logits[t] (see `moe_routing`), r = `round_tokens`:

    y[t] = sum over j < k of w[t, j] * (down[e] @ r'(swiglu(gate_up[e] @ r(x[t]) + gate_up_bias[e])) + down_bias[e])

swiglu is the clamped, interleaved one of the `swiglu` op. r rounds a token to E4M3 with one power-of-two scale, and has
been applied to x already. r' rounds to E4M3 after multiplying by 8 and needs no maximum, because the clamp bounds what
it sees: with limit 7, |gate * sigmoid(alpha * gate) * (up + 1)| <= 7 * 8 = 56, and 56 * 8 = 448, the largest E4M3
number. The outer sum is not taken: it is returned as `moe_combine`'s operands, so that the norm that follows can take
it in passing.

x: values [num_tokens, hidden_size] float8_e4m3fn, contiguous, and scales [num_tokens] float32. router_logits:
[num_tokens, num_experts] bfloat16 or float32, contiguous, biases included. gate_up: values [num_experts,
2 * intermediate_size, hidden_size] float8_e4m3fn, even rows gate and odd rows up, and scales [num_experts,
2 * intermediate_size] float32; down: [num_experts, hidden_size, intermediate_size] and [num_experts, hidden_size];
biases of the scales' shapes, bfloat16. Sizes are multiples of 16, num_experts is a power of two, x has fewer than
2**32 numbers. Returns `WeightedRows`, rows in bfloat16. Nothing is written in place. Sums are in float32 (the FP8
matrix units of Hopper keep about 14 bits of each product's sum; biases and scales come after). A token whose
logits hold NaN gets NaN, and the others what they would get without it.
Hardware: Hopper; no host synchronisation. Source: `MLPBlock` in openai/gpt-oss, gpt_oss/torch/model.py; the bound of
r' follows from its clamp.
"""

import torch
from torch import Tensor

from rose.kernels.contract import require, require_contiguous, require_dtype, require_shape
from rose.kernels.hopper import on_hopper
from rose.kernels.moe_combine.op import WeightedRows
from rose.numerics.fp8 import E4M3, Fp8RowTensor

_OP = "moe_fp8"
SWIGLU_LIMIT = 7.0  # what the fixed scale of r' is made for


def supports(x: Tensor, gate_up: Fp8RowTensor, *, swiglu_limit: float) -> bool:
    """Whether this op can run on such activations; otherwise the ops it is made of do, one by one."""
    num_experts, _, hidden_size = gate_up.shape
    return (
        on_hopper(x)
        and x.dtype == torch.bfloat16
        and swiglu_limit == SWIGLU_LIMIT
        and num_experts & (num_experts - 1) == 0
        and hidden_size % 16 == 0
        and gate_up.shape[1] % 32 == 0
    )


def moe_fp8(
    x: Fp8RowTensor,
    router_logits: Tensor,
    gate_up: Fp8RowTensor,
    gate_up_bias: Tensor,
    down: Fp8RowTensor,
    down_bias: Tensor,
    *,
    experts_per_token: int,
    swiglu_alpha: float,
) -> WeightedRows:
    """Route every token through its experts; see the module's contract. Raises UnsupportedShape."""
    require_shape(_OP, "x", x.values, (None, None))
    num_tokens, hidden_size = x.shape
    require_shape(_OP, "scales of x", x.scales, (num_tokens,))
    require_shape(_OP, "router_logits", router_logits, (num_tokens, None))
    num_experts = router_logits.shape[1]
    require_shape(_OP, "down", down.values, (num_experts, hidden_size, None))
    intermediate_size = down.shape[2]
    require_shape(_OP, "gate_up", gate_up.values, (num_experts, 2 * intermediate_size, hidden_size))
    for name, weight, bias in (("gate_up", gate_up, gate_up_bias), ("down", down, down_bias)):
        require_dtype(_OP, name, weight.values, E4M3)
        require_shape(_OP, f"{name} scales", weight.scales, weight.shape[:2])
        require_dtype(_OP, f"{name} scales", weight.scales, torch.float32)
        require_shape(_OP, f"{name} bias", bias, weight.shape[:2])
        require_dtype(_OP, f"{name} bias", bias, torch.bfloat16)
        for part, tensor in ((name, weight.values), (f"{name} scales", weight.scales), (f"{name} bias", bias)):
            require_contiguous(_OP, part, tensor)
    require_dtype(_OP, "x", x.values, E4M3)
    require_dtype(_OP, "scales of x", x.scales, torch.float32)
    require_dtype(_OP, "router_logits", router_logits, torch.bfloat16, torch.float32)
    for name, tensor in (("x", x.values), ("scales of x", x.scales), ("router_logits", router_logits)):
        require_contiguous(_OP, name, tensor)
    require(num_experts & (num_experts - 1) == 0, _OP, f"num_experts must be a power of two, got {num_experts}")
    sizes = f"hidden_size {hidden_size}, intermediate_size {intermediate_size}"
    require(hidden_size % 16 == 0 and intermediate_size % 16 == 0, _OP, f"sizes must be multiples of 16, got {sizes}")
    require(num_tokens * hidden_size < 1 << 32, _OP, f"x has too many numbers, {num_tokens * hidden_size}")
    require(0 < experts_per_token <= num_experts, _OP, f"cannot choose {experts_per_token} of {num_experts} experts")
    if num_tokens == 0:
        nothing = torch.empty((0, experts_per_token), dtype=torch.float32, device=x.scales.device)
        return WeightedRows(x.values.to(torch.bfloat16), nothing.int(), nothing)
    from rose.kernels.moe_fp8.experts_sm90 import down_sm90, gate_up_sm90
    from rose.kernels.moe_fp8.place_triton import place_triton

    placement = place_triton(router_logits, experts_per_token=experts_per_token)
    activated = gate_up_sm90(x, placement, gate_up, gate_up_bias, swiglu_alpha=swiglu_alpha)
    rows = down_sm90(activated, placement, down, down_bias)
    return WeightedRows(rows, placement.rows, placement.weights)
