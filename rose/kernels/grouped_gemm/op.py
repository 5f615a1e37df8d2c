"""One matrix product per expert, each over its own rows.

    y[r] = weight[e] @ x[r] + bias[e]       for r in expert_offsets[e] ... expert_offsets[e + 1] - 1

x: [num_rows, in_features], contiguous, float32, bfloat16 or float16, rows in order of expert.
weight: [num_experts, out_features, in_features], a contiguous tensor of x's dtype, or an `Mxfp4Tensor`,
`Fp8RowTensor` or `Fp8BlockTensor` of that logical shape. bias: [num_experts, out_features] of x's dtype, or None.
expert_offsets: [num_experts + 1] int64, from 0 to num_rows, not decreasing; an expert may have no rows. Returns y:
[num_rows, out_features] of x's dtype. Nothing is written in place. Sums are in float32 and rounded once, with the
bias; quantized weights have their exact values. x is taken as it is: rounding it to FP8 is up to the caller.
Hardware: any. The reference reads expert_offsets on the host, so on a GPU it synchronises; a fast backend must not.
Source: the grouped products of MegaBlocks, Gale et al., arXiv 2211.15841.
"""

import torch
from torch import Tensor

from rose.kernels.contract import FLOATS, require_dtype, require_shape
from rose.kernels.grouped_gemm.reference import grouped_gemm_reference
from rose.numerics.format import QuantizedTensor


def grouped_gemm(x: Tensor, weight: Tensor | QuantizedTensor, expert_offsets: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply each expert's rows by its weight; see the module's contract. Raises UnsupportedShape."""
    num_experts, out_features, in_features = weight.shape
    require_shape("grouped_gemm", "x", x, (None, in_features))
    require_dtype("grouped_gemm", "x", x, *FLOATS)
    require_shape("grouped_gemm", "expert_offsets", expert_offsets, (num_experts + 1,))
    require_dtype("grouped_gemm", "expert_offsets", expert_offsets, torch.int64)
    if isinstance(weight, Tensor):
        require_dtype("grouped_gemm", "weight", weight, x.dtype)
    if bias is not None:
        require_shape("grouped_gemm", "bias", bias, (num_experts, out_features))
        require_dtype("grouped_gemm", "bias", bias, x.dtype)
    return grouped_gemm_reference(x, weight, expert_offsets, bias)
