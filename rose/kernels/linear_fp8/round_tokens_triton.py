"""`rose.numerics.fp8.round_tokens` in Triton, as E4M3 numbers and scales; one program per token."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rose.numerics.fp8 import E4M3


@triton.jit
def e4m3_scale(largest):
    """The smallest normal power of two s with largest / s <= 448, and 1 / s: from the bits of largest / 448."""
    bits = (largest / 448.0).to(tl.int32, bitcast=True)
    exponent = tl.maximum((bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32), 1)
    return (exponent << 23).to(tl.float32, bitcast=True), ((254 - exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _round_kernel(x_ptr, values_ptr, scales_ptr, WIDTH: tl.constexpr, PADDED_WIDTH: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PADDED_WIDTH)
    inside = i < WIDTH
    x = tl.load(x_ptr + token * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    scale, inverse = e4m3_scale(tl.max(tl.abs(x), 0))
    tl.store(values_ptr + token * WIDTH + i, (x * inverse).to(values_ptr.dtype.element_ty), mask=inside)
    tl.store(scales_ptr + token, scale)


def round_tokens_triton(x: Tensor) -> tuple[Tensor, Tensor]:
    """[num_tokens, width] contiguous -> the same shape in E4M3, and [num_tokens] float32 powers of two."""
    num_tokens, width = x.shape
    values = torch.empty(x.shape, dtype=E4M3, device=x.device)
    scales = torch.empty(num_tokens, dtype=torch.float32, device=x.device)
    _round_kernel[(num_tokens,)](x, values, scales, width, triton.next_power_of_2(width), num_warps=8)
    return values, scales
