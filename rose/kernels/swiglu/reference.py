"""`swiglu` in plain torch."""

import torch
from torch import Tensor


def swiglu_reference(x: Tensor, *, alpha: float, limit: float) -> Tensor:
    """See `op.py`."""
    wide = x.float()
    gate = wide[:, 0::2].clamp(max=limit)
    up = wide[:, 1::2].clamp(min=-limit, max=limit)
    return (gate * torch.sigmoid(alpha * gate) * (up + 1)).to(x.dtype)
