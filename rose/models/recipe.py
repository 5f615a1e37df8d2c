"""How to make up a model's tensors: for checkpoints of the published shapes without the published weights."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Normal:
    """Independent normal numbers, in bfloat16."""

    std: float
    mean: float = 0.0


@dataclass(frozen=True, slots=True)
class Directions:
    """Rows of length 1 in random directions, in bfloat16: scores of a normalized state, none favoured by its length."""


@dataclass(frozen=True, slots=True)
class Mxfp4Codes:
    """Bytes of two MXFP4 codes, all 16 equally often.

    That is close to what quantized normal weights have: the eight magnitudes are about their octiles.
    """


@dataclass(frozen=True, slots=True)
class Mxfp4Scales:
    """Exponents, as E8M0 bytes, that give weights of uniform codes the standard deviation `std`.

    row_octaves, block_octaves: standard deviations, in powers of two, of what a row's exponents share and of each
    block's own, as rows of trained models differ in size and blocks in their outliers.
    """

    std: float
    row_octaves: float
    block_octaves: float


Distribution = Normal | Directions | Mxfp4Codes | Mxfp4Scales


@dataclass(frozen=True, slots=True)
class Recipe:
    """One tensor. dtype: the safetensors name."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    distribution: Distribution
