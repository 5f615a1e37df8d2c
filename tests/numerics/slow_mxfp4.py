"""`rose.numerics.mxfp4.encode` as plainly as it can be said: both scales for every block, in float64, all at once."""

import torch
from torch import Tensor

MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
# Where rounding passes from one code to the next. What lies in the middle goes to an even mantissa bit, which is the
# upper one's for every second boundary.
BOUNDARIES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def encode(values: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks [..., n / 32, 16] and scales [..., n / 32], uint8, of finite values [..., n]."""
    grouped = values.float().unflatten(-1, (-1, 32))
    largest = grouped.abs().amax(-1, keepdim=True)
    exponent = torch.where(largest > 0, torch.frexp(largest).exponent - 3, 0)
    lower = exponent.clamp(-127, 127)
    upper = (lower + 1).clamp(max=127)
    lower_codes, lower_error = _round_with_scale(grouped, lower)
    upper_codes, upper_error = _round_with_scale(grouped, upper)
    use_upper = upper_error < lower_error
    codes = torch.where(use_upper, upper_codes, lower_codes)
    scales = (torch.where(use_upper, upper, lower) + 127).squeeze(-1).to(torch.uint8)
    return codes[..., 0::2] | (codes[..., 1::2] << 4), scales


def _round_with_scale(grouped: Tensor, exponent: Tensor) -> tuple[Tensor, Tensor]:
    scale = torch.exp2(exponent.double())
    magnitude = (grouped.double() / scale).abs()
    codes = torch.zeros_like(magnitude, dtype=torch.uint8)
    for index, boundary in enumerate(BOUNDARIES):
        codes += (magnitude >= boundary) if index % 2 else (magnitude > boundary)
    error = ((MAGNITUDES[codes.long()] - magnitude) * scale).square().sum(-1, keepdim=True)
    return codes | (torch.signbit(grouped).to(torch.uint8) << 3), error
