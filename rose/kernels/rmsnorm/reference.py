"""`rmsnorm` in plain torch."""

from torch import Tensor


def rmsnorm_reference(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """See `op.py`."""
    wide = x.float()
    scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()  # [num_tokens, 1]
    return (wide * scale).mul_(weight).to(x.dtype)
