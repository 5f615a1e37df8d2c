"""MXFP4: 4-bit floats in blocks of 32 that share one power-of-two scale.

An element is FP4 E2M1: one sign bit, two exponent bits, one mantissa bit, so its magnitude is one of
0, 0.5, 1, 1.5, 2, 3, 4, 6. A scale is E8M0: the byte s means 2**(s - 127), and 255 means NaN. Two elements share a
byte, the earlier one in the low nibble.

Source: OCP Microscaling Formats (MX) Specification 1.0, sections 5.3.3 and 5.4; the byte order is that of the
published gpt-oss checkpoints.
"""

import math
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK_ELEMENTS = 32
BLOCK_BYTES = BLOCK_ELEMENTS // 2
SCALE_BIAS = 127
SCALE_NAN = 255

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_MAX_EXPONENT = 2  # of the largest magnitude, 6 = 1.5 * 2**2
# Where rounding passes from code i to code i + 1: the middle of two neighbouring magnitudes. A value exactly in the
# middle goes to the neighbour with an even mantissa bit, which is the upper one for every second boundary.
_BOUNDARIES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


@dataclass(frozen=True, slots=True)
class Mxfp4Tensor:
    """An MXFP4 tensor of logical shape [..., n], blocked along its last dimension.

    blocks: [..., n / 32, 16] uint8, two elements a byte. scales: [..., n / 32] uint8.
    """

    blocks: Tensor
    scales: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape, in elements."""
        *outer, num_blocks = self.scales.shape
        return (*outer, num_blocks * BLOCK_ELEMENTS)

    def __getitem__(self, index: int) -> "Mxfp4Tensor":
        """The part at `index` of the first dimension, as a view."""
        return Mxfp4Tensor(self.blocks[index], self.scales[index])

    def rows(self, start: int, stop: int) -> "Mxfp4Tensor":
        """Some rows of a matrix, as a view."""
        return Mxfp4Tensor(self.blocks[start:stop], self.scales[start:stop])

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """The values, [..., n] of `dtype`; see `decode`."""
        return decode(self.blocks, self.scales, dtype)


@cache
def _tables(device: torch.device) -> tuple[Tensor, Tensor]:
    """What each byte of elements means, [256, 2] float32, and each byte of scale, [256, 1] float32."""
    nibbles = [*_MAGNITUDES, *(-magnitude for magnitude in _MAGNITUDES)]
    elements = [[nibbles[byte & 0xF], nibbles[byte >> 4]] for byte in range(256)]
    scales = [[math.ldexp(1.0, byte - SCALE_BIAS)] for byte in range(SCALE_NAN)] + [[math.nan]]
    return torch.tensor(elements, device=device), torch.tensor(scales, device=device)


def decode(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The values of an MXFP4 tensor.

    blocks: [..., num_blocks, 16] uint8. scales: [..., num_blocks] uint8. Returns [..., num_blocks * 32] of `dtype`;
    exact in float32 and bfloat16 wherever these can hold the value. A scale of 255 gives NaN.
    """
    if blocks.dtype != torch.uint8 or scales.dtype != torch.uint8:
        raise ValueError(f"MXFP4 blocks and scales are uint8, not {blocks.dtype} and {scales.dtype}")
    if blocks.shape != (*scales.shape, BLOCK_BYTES):
        raise ValueError(f"MXFP4 blocks {tuple(blocks.shape)} do not belong to scales {tuple(scales.shape)}")
    element_table, scale_table = _tables(blocks.device)
    elements = F.embedding(blocks.int(), element_table)  # [..., num_blocks, 16, 2] f32
    values = elements.flatten(-2).mul_(F.embedding(scales.int(), scale_table))  # [..., num_blocks, 32] f32
    return values.flatten(-2).to(dtype)


def encode(values: Tensor) -> Mxfp4Tensor:
    """The nearest MXFP4 tensor to `values`, [..., n] of any float dtype with n a multiple of 32.

    Elements round to nearest, ties to even, and saturate at 6. The scale of a block is the better, by squared error,
    of the two that make sense: the one of the MX specification, which puts the largest magnitude into [4, 8) and may
    saturate it, and the next one up, which never saturates. Values that MXFP4 can hold come back exactly; an all-zero
    block gets scale 1. The values are finite, which is not looked at: that would wait for their device.
    """
    if values.dim() == 0 or values.shape[-1] % BLOCK_ELEMENTS:
        raise ValueError(f"MXFP4 needs a last dimension in multiples of {BLOCK_ELEMENTS}, got {tuple(values.shape)}")
    grouped = values.detach().float().unflatten(-1, (-1, BLOCK_ELEMENTS))  # [..., num_blocks, 32]
    largest = grouped.abs().amax(-1, keepdim=True)  # [..., num_blocks, 1]
    # frexp gives a mantissa in [0.5, 1), hence the extra one.
    exponent = torch.where(largest > 0, torch.frexp(largest).exponent - 1 - _MAX_EXPONENT, 0)
    lower = exponent.clamp(-SCALE_BIAS, SCALE_NAN - 1 - SCALE_BIAS)
    upper = (lower + 1).clamp(max=SCALE_NAN - 1 - SCALE_BIAS)
    lower_codes, lower_error = _round_with_scale(grouped, lower)
    upper_codes, upper_error = _round_with_scale(grouped, upper)
    use_upper = upper_error < lower_error  # [..., num_blocks, 1]
    codes = torch.where(use_upper, upper_codes, lower_codes)
    scales = (torch.where(use_upper, upper, lower) + SCALE_BIAS).squeeze(-1).to(torch.uint8)
    blocks = codes[..., 0::2] | (codes[..., 1::2] << 4)  # low nibble first
    return Mxfp4Tensor(blocks, scales)


def _round_with_scale(grouped: Tensor, exponent: Tensor) -> tuple[Tensor, Tensor]:
    """FP4 codes of `grouped` / 2**exponent, [..., 32] uint8, and each block's squared error, [..., 1] float64.

    In float64, where neither the division by the smallest scale nor the square can overflow.
    """
    scale = torch.exp2(exponent.double())
    scaled = grouped.double() / scale
    magnitude = scaled.abs()
    codes = torch.zeros_like(magnitude, dtype=torch.uint8)
    for index, boundary in enumerate(_BOUNDARIES):
        upper_is_even = index % 2 == 1
        codes += (magnitude >= boundary) if upper_is_even else (magnitude > boundary)
    elements, _ = _tables(grouped.device)
    rounded = elements[: len(_MAGNITUDES), 0].double()[codes.long()]  # the low nibbles of the first bytes
    error = ((rounded - magnitude) * scale).square().sum(-1, keepdim=True)
    return codes | (torch.signbit(grouped).to(torch.uint8) << 3), error


def check_scales(scales: Tensor) -> None:
    """Raise ValueError, with the position, if a scale is NaN (255): such a tensor has no values."""
    bad = (scales == SCALE_NAN).nonzero()
    if len(bad):
        raise ValueError(f"{len(bad)} MXFP4 scale(s) are NaN (255), the first at {bad[0].tolist()}")


def is_sound(scales: Tensor) -> Tensor:
    """Whether `check_scales` has nothing to say: a bool of no dimensions on their device, without waiting for it."""
    return (scales != SCALE_NAN).all()
