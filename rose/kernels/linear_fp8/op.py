"""A linear layer whose weight is FP8 with one scale per row, for activations rounded to FP8 with one scale per token.

    y[t] = weight.scales * x.scales[t] * (weight.values @ x.values[t]) + bias

`linear_fp8_float32` is the same without bias and without rounding y. `round_to_fp8` makes x: the E4M3 numbers and
scales of `round_tokens`, from [num_tokens, in_features], contiguous, of any float dtype; a norm makes them in passing.

x: values [num_tokens, in_features] float8_e4m3fn, contiguous, scales [num_tokens] float32, powers of two. weight:
values [out_features, in_features] float8_e4m3fn, contiguous, scales [out_features] float32. bias: [out_features]
bfloat16, or None. Sizes are multiples of 16. Returns y: [num_tokens, out_features] bfloat16. Nothing is written in
place. Sums are in float32 (Hopper's FP8 matrix units keep about 14 bits of each product's sum); scales and bias come
after, and y is rounded once.
Hardware: Hopper; no host synchronisation. The product is torch's row-scaled one (cuBLASLt or CUTLASS), measured as fast
as our own here; the rounding is one Triton kernel.
"""

import torch
from torch import Tensor

from rose.kernels.contract import require, require_contiguous, require_dtype, require_shape
from rose.kernels.hopper import on_hopper
from rose.numerics.fp8 import E4M3, Fp8RowTensor, encode_tokens

_OP = "linear_fp8"


def supports(x: Tensor, weight: Fp8RowTensor) -> bool:
    """Whether this op can run here; otherwise the weight is expanded and multiplied by the rounded activations."""
    return on_hopper(x) and x.dtype == torch.bfloat16 and all(size % 16 == 0 for size in weight.shape)


def round_to_fp8(x: Tensor) -> Fp8RowTensor:
    """Round each token to E4M3 with a power-of-two scale; see the module's contract. Raises UnsupportedShape."""
    require_shape("round_to_fp8", "x", x, (None, None))
    require(x.is_contiguous(), "round_to_fp8", f"x must be contiguous, got strides {x.stride()}")
    if on_hopper(x) and x.shape[0] > 0:
        from rose.kernels.linear_fp8.round_tokens_triton import round_tokens_triton

        return Fp8RowTensor(*round_tokens_triton(x))
    return encode_tokens(x)


def linear_fp8(x: Fp8RowTensor, weight: Fp8RowTensor, bias: Tensor | None) -> Tensor:
    """Multiply; see the module's contract. Raises UnsupportedShape."""
    _check(x, weight)
    if x.shape[0] == 0:
        return torch.empty((0, weight.shape[0]), dtype=torch.bfloat16, device=x.values.device)
    return torch._scaled_mm(
        x.values,
        weight.values.t(),
        x.scales.unsqueeze(1),
        weight.scales.unsqueeze(0),
        bias=bias,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )


def linear_fp8_float32(x: Fp8RowTensor, weight: Fp8RowTensor) -> Tensor:
    """Multiply few rows: [num_tokens, out_features] float32. Raises UnsupportedShape."""
    _check(x, weight)
    if x.shape[0] == 0:
        return torch.empty((0, weight.shape[0]), dtype=torch.float32, device=x.values.device)
    from rose.kernels.linear_fp8.few_rows_triton import few_rows_triton

    return few_rows_triton(x.values, x.scales, weight)


def _check(x: Fp8RowTensor, weight: Fp8RowTensor) -> None:
    out_features, in_features = weight.shape
    require_shape(_OP, "x", x.values, (None, in_features))
    require_shape(_OP, "scales of x", x.scales, x.shape[:1])
    for name, values in (("x", x.values), ("weight", weight.values)):
        require_dtype(_OP, name, values, E4M3)
        require_contiguous(_OP, name, values)
    require_shape(_OP, "scales", weight.scales, (out_features,))
    for name, scales in (("scales of x", x.scales), ("scales", weight.scales)):
        require_dtype(_OP, name, scales, torch.float32)
        require_contiguous(_OP, name, scales)
    require(out_features % 16 == 0 and in_features % 16 == 0, _OP, f"sizes must be multiples of 16, got {weight.shape}")
