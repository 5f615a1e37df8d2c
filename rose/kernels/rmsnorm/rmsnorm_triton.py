"""`rmsnorm` and `add_rmsnorm_` in Triton: one program per row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rose.kernels.linear_fp8.round_tokens_triton import e4m3_scale
from rose.kernels.moe_combine.op import WeightedRows
from rose.numerics.fp8 import E4M3, Fp8RowTensor


@triton.jit
def _rmsnorm_kernel(
    x_ptr, add_ptr, row_of_ptr, row_weights_ptr, weight_ptr, plain_ptr, values_ptr, scales_ptr,
    x_stride, add_stride, eps,
    WIDTH: tl.constexpr, PADDED_WIDTH: tl.constexpr, ADD: tl.constexpr, TOP: tl.constexpr, PLAIN: tl.constexpr,
    ROUNDED: tl.constexpr,
):  # fmt: skip
    """ADD: add a row of add_ptr, or with TOP > 0 the weighted sum of so many. PLAIN, ROUNDED: which forms to write."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PADDED_WIDTH)
    inside = i < WIDTH
    x = tl.load(x_ptr + row * x_stride + i, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        if TOP > 0:
            add = tl.zeros([PADDED_WIDTH], tl.float32)
            for j in tl.static_range(TOP):
                at = tl.load(row_of_ptr + row * TOP + j).to(tl.int64) * add_stride
                term = tl.load(add_ptr + at + i, mask=inside, other=0.0).to(tl.float32)
                add += tl.load(row_weights_ptr + row * TOP + j) * term
            add = add.to(add_ptr.dtype.element_ty).to(tl.float32)  # as `moe_combine` rounds it
        else:
            add = tl.load(add_ptr + row * add_stride + i, mask=inside, other=0.0).to(tl.float32)
        rounded = (x + add).to(x_ptr.dtype.element_ty)
        tl.store(x_ptr + row * x_stride + i, rounded, mask=inside)
        x = rounded.to(tl.float32)  # what the next layer will read, so that both paths normalize the same numbers
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / WIDTH + eps)
    y = (x * scale * tl.load(weight_ptr + i, mask=inside, other=0.0)).to(x_ptr.dtype.element_ty)
    if PLAIN:
        tl.store(plain_ptr + row * WIDTH + i, y, mask=inside)
    if ROUNDED:
        y = y.to(tl.float32)
        scale, inverse = e4m3_scale(tl.max(tl.abs(y), 0))
        tl.store(values_ptr + row * WIDTH + i, (y * inverse).to(values_ptr.dtype.element_ty), mask=inside)
        tl.store(scales_ptr + row, scale)


def rmsnorm_triton(
    x: Tensor, weight: Tensor, *, eps: float, add: Tensor | WeightedRows | None = None, form: str = "plain"
) -> tuple[Tensor | None, Fp8RowTensor | None]:
    """See `op.py`; with `add`, `add_rmsnorm_`. Returns the plain and the rounded form, None where not asked for."""
    num_tokens, width = x.shape
    plain = rounded = None
    if form != "rounded":
        plain = torch.empty((num_tokens, width), dtype=x.dtype, device=x.device)
    if form != "plain":
        values = torch.empty((num_tokens, width), dtype=E4M3, device=x.device)
        rounded = Fp8RowTensor(values, torch.empty(num_tokens, dtype=torch.float32, device=x.device))
    terms = add if isinstance(add, WeightedRows) else None
    added = x if add is None else add.rows if isinstance(add, WeightedRows) else add
    _rmsnorm_kernel[(num_tokens,)](
        x, added, x if terms is None else terms.row_of, x if terms is None else terms.weights, weight,
        x if plain is None else plain, x if rounded is None else rounded.values,
        x if rounded is None else rounded.scales, x.stride(0), added.stride(0), eps,
        width, triton.next_power_of_2(width), add is not None, 0 if terms is None else terms.weights.shape[1],
        plain is not None, rounded is not None,
        num_warps=8 if width > 1024 else 4,
    )  # fmt: skip
    return plain, rounded
