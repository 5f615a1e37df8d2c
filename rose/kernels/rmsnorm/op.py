"""Root-mean-square normalization.

    y[t, i] = x[t, i] / sqrt(mean_j(x[t, j]**2) + eps) * weight[i]

`add_rmsnorm_` first adds to the residual stream, x[t] += add[t], in place and rounded, and normalizes the sum.

x: [num_tokens, hidden_size], float32, bfloat16 or float16; rows may be strided, elements of a row are neighbours.
add: the same.
weight: [hidden_size] float32. Returns y: shape and dtype of x, contiguous. Nothing but x is written in
place, and that by `add_rmsnorm_` only.
Mean, root and the product with the weight are in float32; y is rounded once.
Hardware: any. Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467.
"""

import torch
from torch import Tensor

from rose.kernels.contract import FLOATS, require_dtype, require_shape, require_unit_stride
from rose.kernels.hopper import on_hopper
from rose.kernels.rmsnorm.reference import rmsnorm_reference


def rmsnorm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Normalize each row of x; see the module's contract. Raises UnsupportedShape."""
    _check(x, weight)
    if on_hopper(x) and x.shape[0] > 0:
        from rose.kernels.rmsnorm.rmsnorm_triton import rmsnorm_triton

        return rmsnorm_triton(x, weight, eps=eps)
    return rmsnorm_reference(x, weight, eps=eps)


def add_rmsnorm_(x: Tensor, add: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Add to x in place, then normalize it; see the module's contract. Raises UnsupportedShape."""
    _check(x, weight)
    require_shape("add_rmsnorm", "add", add, tuple(x.shape))
    require_dtype("add_rmsnorm", "add", add, x.dtype)
    require_unit_stride("add_rmsnorm", "add", add)
    if on_hopper(x) and x.shape[0] > 0:
        from rose.kernels.rmsnorm.rmsnorm_triton import rmsnorm_triton

        return rmsnorm_triton(x, weight, eps=eps, add=add)
    return rmsnorm_reference(x.add_(add), weight, eps=eps)


def _check(x: Tensor, weight: Tensor) -> None:
    require_shape("rmsnorm", "x", x, (None, None))
    require_dtype("rmsnorm", "x", x, *FLOATS)
    require_unit_stride("rmsnorm", "x", x)
    require_shape("rmsnorm", "weight", weight, (x.shape[1],))
    require_dtype("rmsnorm", "weight", weight, torch.float32)
