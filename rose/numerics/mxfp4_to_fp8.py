"""From MXFP4 to FP8 E4M3 without loss, wherever that is possible.

A nonzero MXFP4 number is m * 2**t with m of 1 or 3: 0.5 and 1.5 of a block with scale 2**e have t = e - 1, and 6 has
t = e + 1. E4M3 with scale 2**k holds it exactly if t - k >= -9 (the smallest subnormal, and a multiple of it is all
that 1 and 3 need) and it is at most 448 * 2**k. The smallest k that fits the largest number, whose leading bit is
2**hi, is k = hi - 8. So a group is exact if and only if

    hi - min t <= 17

whatever other scale were chosen. Of the scales alone this can be promised up to a spread of 14 powers of two: 6 * 2**e
beside 0.5 * 2**(e - 14). A group that holds less than every magnitude allows more, up to 17 when it is all +-0.5, and
zeros allow anything, so it is the codes that occur that count here. Numbers of a group that is not exact are rounded
to multiples of 2**(k - 9), at most 2**-18 of the group's largest.
"""

from functools import cache

import torch
from torch import Tensor

from rose.numerics.fp8 import (
    BLOCK,
    E4M3,
    E4M3_MAX_EXPONENT,
    E4M3_MIN_EXPONENT,
    MIN_SCALE_EXPONENT,
    Fp8BlockTensor,
    Fp8RowTensor,
    block_max,
    expand_blocks,
    powers_of_two,
)
from rose.numerics.loss import Loss
from rose.numerics.mxfp4 import BLOCK_ELEMENTS, SCALE_BIAS, Mxfp4Tensor

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Far below every exponent of a leading bit: stands for zero's.
_NOTHING = -10_000
# A block's exponent less its group's: above the highest every number would exceed 448, at the lowest all become zero.
_MAX_SHIFT = E4M3_MAX_EXPONENT + 1
_MIN_SHIFT = E4M3_MIN_EXPONENT - 4
# From here on every code is exact.
_EXACT_SHIFT = E4M3_MIN_EXPONENT + 1
_MASK_MAGNITUDE = 0x7
_MASK_BOTH = 0x77
_GROUP_COLUMNS = BLOCK // BLOCK_ELEMENTS


def to_fp8_rows(source: Mxfp4Tensor) -> Fp8RowTensor:
    """One scale per output row, [..., out_features, in_features].

    No scale of `source` is NaN, which is not looked at: see `mxfp4.check_scales` and `mxfp4.is_sound`.
    """
    exponents = _group_exponents(_leading_exponents(source).amax(-1))  # [..., out]
    return Fp8RowTensor(_recode(source, exponents.unsqueeze(-1)), powers_of_two(exponents))


def to_fp8_blocks(source: Mxfp4Tensor) -> Fp8BlockTensor:
    """One scale per block of 128 x 128; otherwise as `to_fp8_rows`."""
    leading = _leading_exponents(source)
    # block_max pads with zeros, so count from _NOTHING.
    exponents = _group_exponents(block_max(leading - _NOTHING, BLOCK, _GROUP_COLUMNS) + _NOTHING)
    expanded = expand_blocks(exponents, *leading.shape[-2:], columns=_GROUP_COLUMNS)
    return Fp8BlockTensor(_recode(source, expanded), powers_of_two(exponents))


def loss_if_exact(source: Mxfp4Tensor, scales: Tensor, block_shape: tuple[int, int]) -> Loss | None:
    """What the conversion of `source` lost, if its scales alone show that this is nothing; else None.

    Much quicker than comparing values. scales: of the FP8 tensor. block_shape: of these scales, (1, 0) or (128, 128).
    """
    _, exponents = torch.frexp(scales)
    if block_shape[0] == 1:
        exponents = exponents.unsqueeze(-1)
    else:
        exponents = expand_blocks(exponents, *source.scales.shape[-2:], columns=_GROUP_COLUMNS)
    shifts = source.scales.int() - SCALE_BIAS - (exponents - 1)  # frexp's mantissa is in [0.5, 1)
    used = ((source.blocks & _MASK_BOTH) != 0).any(-1)
    if bool(((shifts < _EXACT_SHIFT) & used).any()):
        return None
    squares = _squares(source.blocks.device).index_select(0, source.blocks.view(-1).int()).view(source.blocks.shape)
    weights = torch.exp2(2.0 * (source.scales.double() - SCALE_BIAS))
    total = float((squares.sum(-1, dtype=torch.float64) * weights).sum())
    return Loss(exact_blocks=scales.numel(), squared_values=total)


def _leading_exponents(source: Mxfp4Tensor) -> Tensor:
    """Exponent of the leading bit of each block's largest number, [..., out, in / 32] int32."""
    codes = torch.maximum(source.blocks & _MASK_MAGNITUDE, (source.blocks >> 4) & _MASK_MAGNITUDE).amax(-1)
    # 0.5 is code 1, from 1.0 on two codes share an exponent; code 0 is zero.
    leading = torch.where(codes > 0, (codes >> 1).int() - 1, _NOTHING)
    return leading + source.scales.int() - SCALE_BIAS


def _group_exponents(leading: Tensor) -> Tensor:
    """The exponent of each group's scale, from that of its largest number's leading bit; 0 for a group of zeros."""
    return torch.where(leading > _NOTHING // 2, (leading - E4M3_MAX_EXPONENT).clamp(min=MIN_SCALE_EXPONENT), 0)


def _recode(source: Mxfp4Tensor, exponents: Tensor) -> Tensor:
    """E4M3 numbers, [..., in_features], for group exponents that broadcast with the scales, [..., in / 32]."""
    shifts = (source.scales.int() - SCALE_BIAS - exponents).clamp(_MIN_SHIFT, _MAX_SHIFT)
    # Two codes a byte, two numbers an int16: half as many look-ups.
    index = (shifts - _MIN_SHIFT).mul_(256).unsqueeze(-1) + source.blocks.int()
    pairs = _table(source.blocks.device).index_select(0, index.view(-1))
    return pairs.view(E4M3).view(source.shape)


@cache
def _table(device: torch.device) -> Tensor:
    """For each shift and byte the two E4M3 numbers, as one int16 in memory order: [num_shifts * 256] int16."""
    nibbles = torch.tensor([*_MAGNITUDES, *(-magnitude for magnitude in _MAGNITUDES)], device="cpu")
    byte = torch.arange(256, device="cpu")
    values = torch.stack([nibbles[byte & 0xF], nibbles[byte >> 4]], dim=-1)  # [256, 2]
    shifts = torch.arange(_MIN_SHIFT, _MAX_SHIFT + 1, dtype=torch.int32, device="cpu")
    # What exceeds 448 belongs to codes that do not occur beside this shift.
    shifted = (values * powers_of_two(shifts).view(-1, 1, 1)).clamp(-448.0, 448.0)
    return shifted.to(E4M3).view(torch.int16).flatten().to(device)


@cache
def _squares(device: torch.device) -> Tensor:
    """For each byte the sum of its two codes' squares, [256] float32."""
    squares = torch.tensor(_MAGNITUDES, device="cpu").square().repeat(2)
    byte = torch.arange(256, device="cpu")
    return (squares[byte & 0xF] + squares[byte >> 4]).to(device)
