"""Products with a weight that is expanded as it is used, for the formats' reference paths."""

import torch
import torch.nn.functional as F
from torch import Tensor

from rose.numerics.format import QuantizedTensor

# Rows of a weight that are widened at a time, where that cannot be left to the device. A multiple of every format's
# block of rows.
_WIDEN_ROWS = 8192


def linear_quantized(x: Tensor, weight: QuantizedTensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias in x's dtype: [num_tokens, in_features] -> [num_tokens, out_features]."""
    return F.linear(x, weight.dequantize(x.dtype), bias)


def linear_float32(x: Tensor, weight: Tensor | QuantizedTensor) -> Tensor:
    """x @ weight.T, not rounded to x's dtype on the way: [n, in_features] -> [n, out_features] float32.

    weight: of x's dtype, or quantized.
    """
    if isinstance(weight, Tensor):
        if weight.dtype == torch.float32:
            return F.linear(x, weight)
        if x.is_cuda:
            return torch.mm(x, weight.t(), out_dtype=torch.float32)
    num_rows = weight.shape[0]
    y = x.new_empty(x.shape[0], num_rows, dtype=torch.float32)
    wide = x.float()
    for start in range(0, num_rows, _WIDEN_ROWS):
        stop = min(start + _WIDEN_ROWS, num_rows)
        if isinstance(weight, Tensor):
            rows = weight[start:stop].float()
        else:
            rows = weight.rows(start, stop).dequantize(torch.float32)
        y[:, start:stop] = wide @ rows.t()
    return y
