"""`grouped_gemm` in plain torch."""

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor

from rose.numerics.format import QuantizedTensor


def grouped_gemm_reference(
    x: Tensor, weight: Tensor | QuantizedTensor, expert_offsets: Tensor, bias: Tensor | None
) -> Tensor:
    """See `op.py`. Visits only the experts that have rows, so a decode step touches few of the weights."""
    y = x.new_empty(x.shape[0], weight.shape[1])
    offsets: list[int] = expert_offsets.tolist()
    for expert, (start, end) in enumerate(pairwise(offsets)):
        if start == end:
            continue
        part = weight[expert]
        matrix = part if isinstance(part, Tensor) else part.dequantize(x.dtype)
        y[start:end] = F.linear(x[start:end], matrix, None if bias is None else bias[expert])
    return y
