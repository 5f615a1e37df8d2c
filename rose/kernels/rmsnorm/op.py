"""Root-mean-square normalization.

    y[t, i] = x[t, i] / sqrt(mean_j(x[t, j]**2) + eps) * weight[i]

x: [num_tokens, hidden_size], float32, bfloat16 or float16; rows may be strided, elements of a row are neighbours.
weight: [hidden_size] float32. Returns y: shape and dtype of x, contiguous. Nothing is written in place.
Mean, root and the product with the weight are in float32; y is rounded once.
Hardware: any. Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467.
"""

import torch
from torch import Tensor

from rose.kernels.contract import FLOATS, require_dtype, require_shape, require_unit_stride
from rose.kernels.rmsnorm.reference import rmsnorm_reference


def rmsnorm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Normalize each row of x; see the module's contract. Raises UnsupportedShape."""
    require_shape("rmsnorm", "x", x, (None, None))
    require_dtype("rmsnorm", "x", x, *FLOATS)
    require_unit_stride("rmsnorm", "x", x)
    require_shape("rmsnorm", "weight", weight, (x.shape[1],))
    require_dtype("rmsnorm", "weight", weight, torch.float32)
    return rmsnorm_reference(x, weight, eps=eps)
