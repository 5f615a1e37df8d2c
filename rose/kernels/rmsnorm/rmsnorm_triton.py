"""`rmsnorm` and `add_rmsnorm_` in Triton: one program per row."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rmsnorm_kernel(
    x_ptr, add_ptr, weight_ptr, out_ptr, x_stride, add_stride, eps,
    WIDTH: tl.constexpr, PADDED_WIDTH: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PADDED_WIDTH)
    inside = i < WIDTH
    x = tl.load(x_ptr + row * x_stride + i, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(add_ptr + row * add_stride + i, mask=inside, other=0.0).to(tl.float32)
        rounded = x.to(x_ptr.dtype.element_ty)
        tl.store(x_ptr + row * x_stride + i, rounded, mask=inside)
        x = rounded.to(tl.float32)  # what the next layer will read, so that both paths normalize the same numbers
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / WIDTH + eps)
    y = x * scale * tl.load(weight_ptr + i, mask=inside, other=0.0)
    tl.store(out_ptr + row * WIDTH + i, y.to(out_ptr.dtype.element_ty), mask=inside)


def rmsnorm_triton(x: Tensor, weight: Tensor, *, eps: float, add: Tensor | None = None) -> Tensor:
    """See `op.py`; with `add`, `add_rmsnorm_`."""
    num_tokens, width = x.shape
    out = torch.empty((num_tokens, width), dtype=x.dtype, device=x.device)
    _rmsnorm_kernel[(num_tokens,)](
        x, x if add is None else add, weight, out, x.stride(0), 0 if add is None else add.stride(0), eps,
        width, triton.next_power_of_2(width), add is not None,
        num_warps=8 if width > 1024 else 4,
    )  # fmt: skip
    return out
