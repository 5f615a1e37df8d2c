"""The clamped SwiGLU of gpt-oss.

With gate[t, i] = x[t, 2i] and up[t, i] = x[t, 2i + 1], that is interleaved and the even column the gate:

    gate = min(gate, limit);  up = clamp(up, -limit, limit)
    y = gate * sigmoid(alpha * gate) * (up + 1)

The gate is clamped from above only. x already includes the bias.

x: [num_rows, 2 * intermediate_size], contiguous, float32, bfloat16 or float16. Returns y: [num_rows,
intermediate_size] of x's dtype. Nothing is written in place. Everything is in float32, rounded once.
Hardware: any. Source: `swiglu` in openai/gpt-oss, gpt_oss/torch/model.py.
"""

from torch import Tensor

from rose.kernels.contract import FLOATS, require, require_dtype, require_shape
from rose.kernels.swiglu.reference import swiglu_reference


def swiglu(x: Tensor, *, alpha: float, limit: float) -> Tensor:
    """Apply the activation; see the module's contract. Raises UnsupportedShape."""
    require_shape("swiglu", "x", x, (None, None))
    require(x.shape[1] % 2 == 0, "swiglu", f"x must have gate and up columns in pairs, got {x.shape[1]} columns")
    require_dtype("swiglu", "x", x, *FLOATS)
    return swiglu_reference(x, alpha=alpha, limit=limit)
