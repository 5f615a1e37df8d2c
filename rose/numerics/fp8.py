"""FP8 E4M3 with power-of-two scales: one per output row, or one per block of 128 x 128; and activations in the same.

An E4M3 number has a sign, four exponent bits and three mantissa bits: magnitudes from 2**-9 (the smallest subnormal)
to 448 = 1.75 * 2**8, and no infinity. The scale of a group is the smallest power of two that brings the group's
largest magnitude to at most 448. As a power of two it shifts numbers without rounding them, so whatever has four
significant bits or fewer and does not fall below 2**-9 of the scale is held exactly: see `mxfp4_to_fp8` for the case
that matters. For other numbers a power of two loses nothing either, since the relative step of E4M3 is the same at
every normal magnitude.

Source: Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433; 1 x 128 by 128 x 128 groups as in
DeepSeek-V3, arXiv 2412.19437, section 3.3.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

E4M3 = torch.float8_e4m3fn
E4M3_MAX = 448.0
E4M3_MAX_EXPONENT = 8  # 448 = 1.75 * 2**8
E4M3_MIN_EXPONENT = -9  # of the smallest subnormal
BLOCK = 128

# The largest mantissa, as frexp gives it (in [0.5, 1)), that fits below 448 = 0.875 * 2**9.
_MAX_MANTISSA = 0.875
# Below this a power of two is subnormal in float32. Weights this small lose what falls under 2**-135.
MIN_SCALE_EXPONENT = -126
_NAN_CODE = 0x7F
_FLOAT32_BIAS = 127
_FLOAT32_MANTISSA_BITS = 23


@dataclass(frozen=True, slots=True)
class Fp8RowTensor:
    """A weight of logical shape [..., out_features, in_features] with one scale per output row.

    values: that shape, float8_e4m3fn. scales: [..., out_features] float32, powers of two. weight = values * scales.
    Activations [num_tokens, features] rounded with a scale for each token are the same thing.
    """

    values: Tensor
    scales: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape."""
        return tuple(self.values.shape)

    def __getitem__(self, index: int) -> "Fp8RowTensor":
        """The part at `index` of the first dimension, as a view."""
        return Fp8RowTensor(self.values[index], self.scales[index])

    def rows(self, start: int, stop: int) -> "Fp8RowTensor":
        """Some rows of a matrix, as a view."""
        return Fp8RowTensor(self.values[start:stop], self.scales[start:stop])

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """The weight itself, of `dtype`; exact in float32 and bfloat16."""
        return (self.values.float() * self.scales.unsqueeze(-1)).to(dtype)


@dataclass(frozen=True, slots=True)
class Fp8BlockTensor:
    """A weight of logical shape [..., out_features, in_features] with one scale per block of 128 x 128.

    values: that shape, float8_e4m3fn. scales: [..., ceil(out_features / 128), ceil(in_features / 128)] float32, powers
    of two; blocks at the far edges may be smaller.
    """

    values: Tensor
    scales: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape."""
        return tuple(self.values.shape)

    def __getitem__(self, index: int) -> "Fp8BlockTensor":
        """The part at `index` of the first of three or more dimensions, as a view."""
        if self.values.dim() < 3:
            raise ValueError("the rows of a block-scaled matrix cannot be taken one at a time")
        return Fp8BlockTensor(self.values[index], self.scales[index])

    def rows(self, start: int, stop: int) -> "Fp8BlockTensor":
        """Some rows of a matrix, as a view; `start` is a multiple of 128."""
        if start % BLOCK:
            raise ValueError(f"rows of a block-scaled matrix start at multiples of {BLOCK}, not at {start}")
        return Fp8BlockTensor(self.values[start:stop], self.scales[start // BLOCK : -(-stop // BLOCK)])

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """The weight itself, of `dtype`; exact in float32 and bfloat16."""
        return (self.values.float() * expand_blocks(self.scales, *self.values.shape[-2:])).to(dtype)


def scale_exponents(largest: Tensor) -> Tensor:
    """The exponent of each group's scale: the smallest k, from -126 on, with largest <= 448 * 2**k; 0 for zero.

    largest: magnitudes, of any shape, finite. Returns int32 of that shape.
    """
    mantissa, exponent = torch.frexp(largest.float())
    k = exponent - (E4M3_MAX_EXPONENT + 1) + (mantissa > _MAX_MANTISSA).int()
    return torch.where(largest > 0, k.clamp(min=MIN_SCALE_EXPONENT), 0).int()


def powers_of_two(exponents: Tensor) -> Tensor:
    """2**exponents, exact on every device: [...] int32 in -126 ... 127 -> [...] float32."""
    # Written as bits, since torch.ldexp multiplies by a pow() that need not be exact.
    return ((exponents + _FLOAT32_BIAS) << _FLOAT32_MANTISSA_BITS).view(torch.float32)


def encode_rows(weight: Tensor) -> Fp8RowTensor:
    """The nearest `Fp8RowTensor` to a weight [..., out_features, in_features] of any float dtype.

    Rounds to nearest, ties to even. The weight is finite, which is not looked at: that would wait for its device.
    """
    wide = weight.detach().float()
    exponents = scale_exponents(wide.abs().amax(-1))
    return Fp8RowTensor((wide * powers_of_two(-exponents).unsqueeze(-1)).to(E4M3), powers_of_two(exponents))


def encode_blocks(weight: Tensor) -> Fp8BlockTensor:
    """The nearest `Fp8BlockTensor` to a weight [..., out_features, in_features]; otherwise as `encode_rows`."""
    wide = weight.detach().float()
    exponents = scale_exponents(block_max(wide.abs(), BLOCK, BLOCK))
    expanded = expand_blocks(exponents, *wide.shape[-2:])
    return Fp8BlockTensor((wide * powers_of_two(-expanded)).to(E4M3), powers_of_two(exponents))


def round_tokens(x: Tensor) -> Tensor:
    """Activations as the FP8 row format multiplies them: each token in E4M3 with one power-of-two scale.

    x: [num_tokens, features] of any float dtype, finite. Returns the rounded values, of x's shape and dtype, which
    holds them exactly.
    """
    return _round(x.float(), x.abs().amax(-1, keepdim=True)).to(x.dtype)


def encode_tokens(x: Tensor) -> Fp8RowTensor:
    """What `round_tokens` rounds to, as numbers and scales."""
    return encode_rows(x)


def round_token_groups(x: Tensor) -> Tensor:
    """Activations as the FP8 block format multiplies them: a scale for every 128 features of a token (1 x 128).

    Otherwise as `round_tokens`.
    """
    largest = block_max(x.abs(), 1, BLOCK)  # [num_tokens, ceil(features / 128)]
    return _round(x.float(), expand_blocks(largest, *x.shape, rows=1)).to(x.dtype)


def check(values: Tensor, scales: Tensor) -> None:
    """Raise ValueError if a number is NaN or a scale is not a positive, finite power of two."""
    if bool(_is_nan(values).any()):
        raise ValueError("FP8 values hold NaN")
    bad = _is_no_power(scales)
    if bool(bad.any()):
        where = bad.nonzero()
        raise ValueError(
            f"{len(where)} FP8 scale(s) are not powers of two, the first, {scales[tuple(where[0])].item()}, at "
            f"{where[0].tolist()}"
        )


def is_sound(values: Tensor, scales: Tensor) -> Tensor:
    """Whether `check` has nothing to say: a bool of no dimensions on their device, without waiting for it."""
    return ~(_is_nan(values).any() | _is_no_power(scales).any())


def block_max(magnitudes: Tensor, rows: int, columns: int) -> Tensor:
    """The largest of each block: [..., m, n] -> [..., ceil(m / rows), ceil(n / columns)]. None is negative."""
    *_, m, n = magnitudes.shape
    padded = F.pad(magnitudes, (0, -n % columns, 0, -m % rows))
    largest: Tensor = padded.unflatten(-1, (-1, columns)).unflatten(-3, (-1, rows)).amax((-3, -1))
    return largest


def expand_blocks(per_block: Tensor, m: int, n: int, *, rows: int = BLOCK, columns: int = BLOCK) -> Tensor:
    """The reverse of `block_max`: [..., ceil(m / rows), ceil(n / columns)] -> [..., m, n]."""
    return per_block.repeat_interleave(rows, -2)[..., :m, :].repeat_interleave(columns, -1)[..., :n]


def _is_nan(values: Tensor) -> Tensor:
    return (values.view(torch.uint8) & _NAN_CODE) == _NAN_CODE


def _is_no_power(scales: Tensor) -> Tensor:
    mantissa, _ = torch.frexp(scales)
    return ~((mantissa == 0.5) & torch.isfinite(scales))


def _round(wide: Tensor, largest: Tensor) -> Tensor:
    exponents = scale_exponents(largest)
    return (wide * powers_of_two(-exponents)).to(E4M3).float() * powers_of_two(exponents)
