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

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rose.numerics.chunks import row_chunks

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
        weight = torch.empty(self.shape, dtype=dtype, device=self.values.device)
        values, scales, out = _as_rows(self.values), self.scales.reshape(-1, 1), _as_rows(weight)
        for chunk in row_chunks(*values.shape, device=values.device):
            out[chunk] = values[chunk].float().mul_(scales[chunk])
        return weight


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
        weight = torch.empty(self.shape, dtype=dtype, device=self.values.device)
        for values, scales, out in zip(*map(_as_matrices, (self.values, self.scales, weight)), strict=True):
            for chunk in row_chunks(*values.shape, device=values.device, multiple=BLOCK):
                wide = values[chunk].float()
                out[chunk] = wide.mul_(expand_blocks(scales[_blocks_of(chunk)], *wide.shape))
        return weight


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
    encoded = Fp8RowTensor(
        torch.empty(weight.shape, dtype=E4M3, device=weight.device),
        torch.empty(weight.shape[:-1], dtype=torch.float32, device=weight.device),
    )
    rows, values, scales = _as_rows(weight.detach()), _as_rows(encoded.values), encoded.scales.view(-1, 1)
    for chunk in row_chunks(*rows.shape, device=rows.device):
        wide = rows[chunk].float()
        exponents = scale_exponents(wide.abs().amax(-1, keepdim=True))
        values[chunk] = wide * powers_of_two(-exponents)
        scales[chunk] = powers_of_two(exponents)
    return encoded


def encode_blocks(weight: Tensor) -> Fp8BlockTensor:
    """The nearest `Fp8BlockTensor` to a weight [..., out_features, in_features]; otherwise as `encode_rows`."""
    *outer, m, n = weight.shape
    encoded = Fp8BlockTensor(
        torch.empty(weight.shape, dtype=E4M3, device=weight.device),
        torch.empty((*outer, -(-m // BLOCK), -(-n // BLOCK)), dtype=torch.float32, device=weight.device),
    )
    parts = map(_as_matrices, (weight.detach(), encoded.values, encoded.scales))
    for matrix, values, scales in zip(*parts, strict=True):
        for chunk in row_chunks(m, n, device=matrix.device, multiple=BLOCK):
            wide = matrix[chunk].float()
            exponents = scale_exponents(block_max(wide.abs(), BLOCK, BLOCK))
            values[chunk] = wide * powers_of_two(-expand_blocks(exponents, *wide.shape))
            scales[_blocks_of(chunk)] = powers_of_two(exponents)
    return encoded


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


def _as_rows(x: Tensor) -> Tensor:
    """[..., n] -> [num_rows, n], a view where x is contiguous."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _as_matrices(x: Tensor) -> Tensor:
    """[..., m, n] -> [num_matrices, m, n], a view where x is contiguous."""
    return x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])


def _blocks_of(rows: slice) -> slice:
    """The blocks that these rows are, the first of which starts one."""
    return slice(rows.start // BLOCK, -(-rows.stop // BLOCK))


def _is_nan(values: Tensor) -> Tensor:
    return (values.view(torch.uint8) & _NAN_CODE) == _NAN_CODE


def _is_no_power(scales: Tensor) -> Tensor:
    mantissa, _ = torch.frexp(scales)
    return ~((mantissa == 0.5) & torch.isfinite(scales))


def _round(wide: Tensor, largest: Tensor) -> Tensor:
    exponents = scale_exponents(largest)
    return (wide * powers_of_two(-exponents)).to(E4M3).float() * powers_of_two(exponents)
