"""Root-mean-square normalization, with what comes before and after it in the same pass.

    y[t, i] = x[t, i] / sqrt(mean_j(x[t, j]**2) + eps) * weight[i]

`add_rmsnorm_` first adds to the residual stream, x[t] += add[t], in place and rounded, and normalizes the sum. add may
be a sum that is yet to be taken, as `moe_combine` defines it.

x: [num_tokens, hidden_size], float32, bfloat16 or float16; rows may be strided, elements of a row are neighbours.
add: the same, or a `WeightedRows` of that shape and dtype. weight: [hidden_size] float32. Returns a `Normalized` with
what `form` asks for: `plain`, y in x's dtype, contiguous; `rounded`, r(y) with r = `round_tokens`, as E4M3 numbers and
one power-of-two scale for each token, r seeing y in x's dtype; or both. Nothing but x is written in place, and that by
`add_rmsnorm_` only. Mean, root and the product with the weight are in float32; y is rounded once.
Hardware: any. Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rose.kernels.contract import FLOATS, require_dtype, require_shape, require_unit_stride
from rose.kernels.hopper import on_hopper
from rose.kernels.moe_combine.op import WeightedRows, moe_combine
from rose.kernels.rmsnorm.reference import rmsnorm_reference
from rose.numerics.fp8 import Fp8RowTensor, encode_tokens

NormForm = Literal["plain", "rounded", "both"]


@dataclass(frozen=True, slots=True)
class Normalized:
    """y in one form or two: as it is, and rounded to E4M3 with a scale for each token. None where not asked for."""

    plain: Tensor | None
    rounded: Fp8RowTensor | None

    @property
    def tensor(self) -> Tensor:
        """The plain form, where that was asked for."""
        if self.plain is None:
            raise ValueError("normalized in rounded form alone")
        return self.plain


def rmsnorm(x: Tensor, weight: Tensor, *, eps: float, form: NormForm = "plain") -> Normalized:
    """Normalize each row of x; see the module's contract. Raises UnsupportedShape."""
    _check(x, weight)
    if on_hopper(x) and x.shape[0] > 0:
        from rose.kernels.rmsnorm.rmsnorm_triton import rmsnorm_triton

        return Normalized(*rmsnorm_triton(x, weight, eps=eps, form=form))
    return _in_form(rmsnorm_reference(x, weight, eps=eps), form)


def add_rmsnorm_(
    x: Tensor, add: Tensor | WeightedRows, weight: Tensor, *, eps: float, form: NormForm = "plain"
) -> Normalized:
    """Add to x in place, then normalize it; see the module's contract. Raises UnsupportedShape."""
    _check(x, weight)
    if isinstance(add, WeightedRows):
        add.check()
        require_shape("add_rmsnorm", "weights", add.weights, (x.shape[0], None))
        require_shape("add_rmsnorm", "rows", add.rows, (None, x.shape[1]))
        require_dtype("add_rmsnorm", "rows", add.rows, x.dtype)
    else:
        require_shape("add_rmsnorm", "add", add, tuple(x.shape))
        require_dtype("add_rmsnorm", "add", add, x.dtype)
        require_unit_stride("add_rmsnorm", "add", add)
    if on_hopper(x) and x.shape[0] > 0:
        from rose.kernels.rmsnorm.rmsnorm_triton import rmsnorm_triton

        return Normalized(*rmsnorm_triton(x, weight, eps=eps, add=add, form=form))
    x.add_(moe_combine(add) if isinstance(add, WeightedRows) else add)
    return _in_form(rmsnorm_reference(x, weight, eps=eps), form)


def _in_form(y: Tensor, form: NormForm) -> Normalized:
    return Normalized(None if form == "rounded" else y, None if form == "plain" else encode_tokens(y))


def _check(x: Tensor, weight: Tensor) -> None:
    require_shape("rmsnorm", "x", x, (None, None))
    require_dtype("rmsnorm", "x", x, *FLOATS)
    require_unit_stride("rmsnorm", "x", x)
    require_shape("rmsnorm", "weight", weight, (x.shape[1],))
    require_dtype("rmsnorm", "weight", weight, torch.float32)
