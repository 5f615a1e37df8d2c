"""Training through MXFP4: the forward pass sees the rounded weights, the backward pass the weights themselves."""

from typing import Any

import torch
from torch import Tensor

_BLOCK = 32
_BOUNDARIES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_STEPS = (0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 2.0)


def round_to_mxfp4(values: Tensor) -> Tensor:
    """The values that `rose.numerics.mxfp4.encode` would store, float32, of the same shape.

    The same rounding written for the compiler: no lookups, no checks, nothing but elementwise work and sums of 32.
    The tests hold the two together bit by bit.
    """
    grouped = values.float().unflatten(-1, (-1, _BLOCK))
    largest = grouped.abs().amax(-1, keepdim=True)
    # The bits of a float32 hold its exponent; 2 is the exponent of the largest FP4 magnitude.
    exponent = ((largest.view(torch.int32) >> 23) - 127 - 2).clamp(min=-100)
    lower, lower_error = _round(grouped, exponent)
    upper, upper_error = _round(grouped, exponent + 1)
    return torch.where(upper_error < lower_error, upper, lower).flatten(-2)


def _power_of_two(exponent: Tensor) -> Tensor:
    return ((exponent + 127) << 23).view(torch.float32)


def _round(grouped: Tensor, exponent: Tensor) -> tuple[Tensor, Tensor]:
    """`grouped` rounded with the scale 2**exponent, and each block's squared error in float64."""
    magnitude = grouped.abs() * _power_of_two(-exponent)
    rounded = torch.zeros_like(magnitude)
    for index, (boundary, step) in enumerate(zip(_BOUNDARIES, _STEPS, strict=True)):
        # A tie goes to the even mantissa, which is the upper neighbour at every second boundary.
        above = magnitude >= boundary if index % 2 else magnitude > boundary
        rounded = rounded + above * step
    scale = _power_of_two(exponent)
    error = ((rounded.double() - magnitude.double()) * scale.double()).square().sum(-1, keepdim=True)
    return torch.copysign(rounded * scale, grouped), error


class FakeQuantize(torch.autograd.Function):
    """`round_to_mxfp4` with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        """Round."""
        return round_to_mxfp4(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Pass through."""
        return grad


def fake_quantize(values: Tensor) -> Tensor:
    """Round `values` to MXFP4 along the last dimension; gradients pass straight through."""
    rounded: Tensor = FakeQuantize.apply(values)  # type: ignore[no-untyped-call]
    return rounded
