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

from rose.numerics.chunks import row_chunks
from rose.numerics.fp8 import powers_of_two

BLOCK_ELEMENTS = 32
BLOCK_BYTES = BLOCK_ELEMENTS // 2
SCALE_BIAS = 127
SCALE_NAN = 255

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_MAX_EXPONENT = 2  # of the largest magnitude, 6 = 1.5 * 2**2
# In units of the lower of the two scales that a block can have: up to here that one is at least as good.
_COMPARED_ABOVE = 7.0
_SIGN = 0x8  # of a code
_FLOAT32_BIAS = 127
_FLOAT32_MANTISSA_BITS = 23
_FLOAT32_EXPONENT_BITS = 0xFF << _FLOAT32_MANTISSA_BITS


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
    flat_blocks, flat_scales = blocks.reshape(-1, BLOCK_BYTES), scales.reshape(-1, 1)
    values = torch.empty(len(flat_scales), BLOCK_ELEMENTS, dtype=dtype, device=blocks.device)
    for chunk in row_chunks(*values.shape, device=values.device):
        elements = F.embedding(flat_blocks[chunk].int(), element_table)  # [num_blocks, 16, 2] f32
        values[chunk] = elements.flatten(1).mul_(F.embedding(flat_scales[chunk].int(), scale_table).flatten(1))
    return values.view(*scales.shape[:-1], scales.shape[-1] * BLOCK_ELEMENTS)


def encode(values: Tensor) -> Mxfp4Tensor:
    """The nearest MXFP4 tensor to `values`, [..., n] of any float dtype with n a multiple of 32.

    Elements round to nearest, ties to even, and saturate at 6. The scale of a block is the better, by squared error,
    of the two that make sense: the one of the MX specification, which puts the largest magnitude into [4, 8) and may
    saturate it, and the next one up, which never saturates. Values that MXFP4 can hold come back exactly; an all-zero
    block gets scale 1. The values are finite, which is not looked at: that would wait for their device.
    """
    if values.dim() == 0 or values.shape[-1] % BLOCK_ELEMENTS:
        raise ValueError(f"MXFP4 needs a last dimension in multiples of {BLOCK_ELEMENTS}, got {tuple(values.shape)}")
    *outer, n = values.shape
    rows = values.detach().reshape(math.prod(outer), n)
    num_blocks = n // BLOCK_ELEMENTS
    blocks = torch.empty(len(rows), num_blocks, BLOCK_BYTES, dtype=torch.uint8, device=values.device)
    scales = torch.empty(len(rows), num_blocks, dtype=torch.uint8, device=values.device)
    for chunk in row_chunks(len(rows), n, device=values.device):
        grouped = rows[chunk].float().reshape(-1, BLOCK_ELEMENTS)
        exponents, codes = _encode_blocks(grouped)
        codes |= ((grouped.view(torch.int32) >> 28) & _SIGN).to(torch.uint8)
        torch.bitwise_or(codes[:, 0::2], codes[:, 1::2] << 4, out=blocks[chunk].view(-1, BLOCK_BYTES))  # low first
        scales[chunk].view(-1, 1).copy_(exponents + SCALE_BIAS)
    return Mxfp4Tensor(blocks.view(*outer, num_blocks, BLOCK_BYTES), scales.view(*outer, num_blocks))


def _encode_blocks(grouped: Tensor) -> tuple[Tensor, Tensor]:
    """Exponents of the scales, [num_blocks, 1] int32, and codes without signs, [num_blocks, 32] uint8.

    grouped: [num_blocks, 32] float32.

    In units of the lower scale, the upper one has the magnitudes 0, 1, 2, 3, 4, 6, 8 and 12. All but the last two the
    lower one has as well, so only a magnitude above 7, halfway from 6 to 8, can be nearer to the upper one, and blocks
    without one are not compared. Those that came from MXFP4 have none: their largest, 1 or 3 times a power of two, is
    4 or 6.
    """
    magnitudes = grouped.abs()
    largest = magnitudes.amax(-1, keepdim=True)
    # Subnormals seem to have -127, more than they have; the smallest scale is theirs in any case.
    leading = (largest.view(torch.int32) >> _FLOAT32_MANTISSA_BITS) - _FLOAT32_BIAS
    exponents = torch.where(largest > 0, (leading - _MAX_EXPONENT).clamp(min=-SCALE_BIAS), 0)
    codes = _nearest_codes(magnitudes, exponents)
    some: Tensor | slice = slice(None)
    if _may_ask(grouped.device):
        some = (largest * powers_of_two(-exponents) > _COMPARED_ABOVE).flatten().nonzero().flatten()
    magnitudes, lower, lower_codes = magnitudes[some], exponents[some], codes[some]
    upper_codes = _nearest_codes(magnitudes, lower + 1)
    use_upper = _error(magnitudes, lower + 1, upper_codes) < _error(magnitudes, lower, lower_codes)
    codes[some] = torch.where(use_upper, upper_codes, lower_codes)
    exponents[some] = lower + use_upper
    return exponents, codes


def _may_ask(device: torch.device) -> bool:
    """Whether only blocks that need it are compared. On a GPU all are: to ask which do would be to wait for it."""
    return device.type == "cpu"


def _nearest_codes(magnitudes: Tensor, exponents: Tensor) -> Tensor:
    """FP4 codes, [num_blocks, 32] uint8, of `magnitudes` / 2**exponents, which is below 8.

    All in float32: a power of two moves a number without rounding it, unless what it becomes is subnormal, far below
    0.25, where codes begin. Magnitudes below 2 are multiples of 0.5, from there on of 1, and from 4 on of 2: the
    spacing of float32 numbers from 2**22, 2**23 and 2**24 on. So adding that power rounds, ties to even, and leaves
    the multiple in the lowest bits.
    """
    scaled = magnitudes * powers_of_two(-exponents)
    power = scaled.view(torch.int32) & _FLOAT32_EXPONENT_BITS
    power.clamp_(min=_FLOAT32_BIAS << _FLOAT32_MANTISSA_BITS).add_(22 << _FLOAT32_MANTISSA_BITS)
    sums = power.view(torch.float32).add_(scaled).view(torch.int32)
    # The multiple, 0 to 4, and two codes more for each power of two beyond 2**22.
    codes = (sums >> (_FLOAT32_MANTISSA_BITS - 1)).add_(sums & 7).sub_(2 * (_FLOAT32_BIAS + 22))
    return codes.clamp_(0, len(_MAGNITUDES) - 1).to(torch.uint8)


def _error(magnitudes: Tensor, exponents: Tensor, codes: Tensor) -> Tensor:
    """Each block's squared error, [num_blocks, 1] float64.

    In float64, where neither the division by the smallest scale nor the square can overflow.
    """
    scale = torch.exp2(exponents.double())
    elements, _ = _tables(magnitudes.device)
    rounded = elements[: len(_MAGNITUDES), 0].double()[codes.long()]  # the low nibbles of the first bytes
    return ((rounded - magnitudes.double() / scale) * scale).square().sum(-1, keepdim=True)


def check_scales(scales: Tensor) -> None:
    """Raise ValueError, with the position, if a scale is NaN (255): such a tensor has no values."""
    bad = (scales == SCALE_NAN).nonzero()
    if len(bad):
        raise ValueError(f"{len(bad)} MXFP4 scale(s) are NaN (255), the first at {bad[0].tolist()}")


def is_sound(scales: Tensor) -> Tensor:
    """Whether `check_scales` has nothing to say: a bool of no dimensions on their device, without waiting for it."""
    return (scales != SCALE_NAN).all()
