"""Weight formats by name: which tensors a weight is stored as, and how values become these tensors and come back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from rose.numerics import fp8, mxfp4

FormatName = Literal["bf16", "mxfp4", "fp8", "fp8-block"]
FORMAT_NAMES: tuple[FormatName, ...] = get_args(FormatName)


class QuantizedTensor(Protocol):
    """A weight in a narrow format, as kernels take it: `Mxfp4Tensor`, `Fp8RowTensor`, `Fp8BlockTensor`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape, in elements."""
        ...

    def __getitem__(self, index: int) -> "QuantizedTensor":
        """The matrix at `index` of the first of three dimensions, as a view."""
        ...

    def rows(self, start: int, stop: int) -> "QuantizedTensor":
        """Some rows of a matrix, as a view; `start` is a multiple of 128. For a weight of two dimensions."""
        ...

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """The values, of `dtype`."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """One of the tensors a weight is stored as. suffix: its name after the weight's own, such as `scales`."""

    suffix: str
    shape: tuple[int, ...]
    dtype: torch.dtype


class WeightFormat(Protocol):
    """How a weight of logical shape [..., out_features, in_features] is stored."""

    @property
    def name(self) -> FormatName:
        """What commands and manifests call it."""
        ...

    @property
    def block_shape(self) -> tuple[int, int]:
        """Rows and columns that share a scale; 0 for all of them, and (1, 1) where there is no scale."""
        ...

    def parts(self, shape: tuple[int, ...]) -> tuple[Part, ...]:
        """The tensors of a weight of this logical shape. Raises ValueError for a shape the format cannot have."""
        ...

    def part_rows(self) -> tuple[int, ...]:
        """How many rows of each part `block_shape[0]` output rows take: a matrix may be cut there and nowhere else."""
        ...

    def encode(self, values: Tensor) -> tuple[Tensor, ...]:
        """The parts nearest to `values`, [..., out_features, in_features] of any float dtype.

        They are finite, which is not looked at: that would wait for their device.
        """
        ...

    def decode(self, parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """The values of the parts, in `dtype`."""
        ...

    def check(self, parts: Sequence[Tensor]) -> None:
        """Raise ValueError, with the position, if scales or numbers are NaN or otherwise impossible."""
        ...

    def is_sound(self, parts: Sequence[Tensor]) -> Tensor | None:
        """Whether `check` has nothing to say: a bool of no dimensions on the parts' device, without waiting for it.

        None where it never has.
        """
        ...


@dataclass(frozen=True, slots=True)
class Floats:
    """A plain tensor. Named bf16 for what it is in a file; in memory it has the dtype of the activations."""

    dtype: torch.dtype = torch.bfloat16
    name: FormatName = "bf16"
    block_shape: tuple[int, int] = (1, 1)

    def parts(self, shape: tuple[int, ...]) -> tuple[Part, ...]:
        """`weight`."""
        return (Part("weight", shape, self.dtype),)

    def part_rows(self) -> tuple[int, ...]:
        """Row by row."""
        return (1,)

    def encode(self, values: Tensor) -> tuple[Tensor, ...]:
        """Rounded to the dtype."""
        return (values.to(self.dtype),)

    def decode(self, parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Converted to `dtype`."""
        (weight,) = parts
        return weight.to(dtype)

    def check(self, parts: Sequence[Tensor]) -> None:
        """Floats are as they are."""

    def is_sound(self, parts: Sequence[Tensor]) -> Tensor | None:
        """Floats are as they are."""
        return None


@dataclass(frozen=True, slots=True)
class Mxfp4Format:
    """See `rose.numerics.mxfp4`."""

    name: FormatName = "mxfp4"
    block_shape: tuple[int, int] = (1, mxfp4.BLOCK_ELEMENTS)

    def parts(self, shape: tuple[int, ...]) -> tuple[Part, ...]:
        """`blocks` and `scales`, uint8."""
        *outer, in_features = shape
        if in_features % mxfp4.BLOCK_ELEMENTS:
            raise ValueError(f"MXFP4 needs in_features in multiples of {mxfp4.BLOCK_ELEMENTS}, got {in_features}")
        scales = (*outer, in_features // mxfp4.BLOCK_ELEMENTS)
        return Part("blocks", (*scales, mxfp4.BLOCK_BYTES), torch.uint8), Part("scales", scales, torch.uint8)

    def part_rows(self) -> tuple[int, ...]:
        """Row by row."""
        return 1, 1

    def encode(self, values: Tensor) -> tuple[Tensor, ...]:
        """See `mxfp4.encode`."""
        encoded = mxfp4.encode(values)
        return encoded.blocks, encoded.scales

    def decode(self, parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """See `mxfp4.decode`."""
        blocks, scales = parts
        return mxfp4.decode(blocks, scales, dtype)

    def check(self, parts: Sequence[Tensor]) -> None:
        """See `mxfp4.check_scales`."""
        mxfp4.check_scales(parts[1])

    def is_sound(self, parts: Sequence[Tensor]) -> Tensor | None:
        """See `mxfp4.is_sound`."""
        return mxfp4.is_sound(parts[1])


@dataclass(frozen=True, slots=True)
class Fp8RowFormat:
    """See `rose.numerics.fp8.Fp8RowTensor`."""

    name: FormatName = "fp8"
    block_shape: tuple[int, int] = (1, 0)

    def parts(self, shape: tuple[int, ...]) -> tuple[Part, ...]:
        """`weight`, float8_e4m3fn, and `row_scales`, float32."""
        return Part("weight", shape, fp8.E4M3), Part("row_scales", shape[:-1], torch.float32)

    def part_rows(self) -> tuple[int, ...]:
        """Row by row."""
        return 1, 1

    def encode(self, values: Tensor) -> tuple[Tensor, ...]:
        """See `fp8.encode_rows`."""
        encoded = fp8.encode_rows(values)
        return encoded.values, encoded.scales

    def decode(self, parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Exact in float32 and bfloat16."""
        return fp8.Fp8RowTensor(*parts).dequantize(dtype)

    def check(self, parts: Sequence[Tensor]) -> None:
        """See `fp8.check`."""
        fp8.check(*parts)

    def is_sound(self, parts: Sequence[Tensor]) -> Tensor | None:
        """See `fp8.is_sound`."""
        return fp8.is_sound(*parts)


@dataclass(frozen=True, slots=True)
class Fp8BlockFormat:
    """See `rose.numerics.fp8.Fp8BlockTensor`."""

    name: FormatName = "fp8-block"
    block_shape: tuple[int, int] = (fp8.BLOCK, fp8.BLOCK)

    def parts(self, shape: tuple[int, ...]) -> tuple[Part, ...]:
        """`weight`, float8_e4m3fn, and `block_scales`, float32."""
        *outer, m, n = shape
        scales = (*outer, -(-m // fp8.BLOCK), -(-n // fp8.BLOCK))
        return Part("weight", shape, fp8.E4M3), Part("block_scales", scales, torch.float32)

    def part_rows(self) -> tuple[int, ...]:
        """128 rows of numbers, one of scales."""
        return fp8.BLOCK, 1

    def encode(self, values: Tensor) -> tuple[Tensor, ...]:
        """See `fp8.encode_blocks`."""
        encoded = fp8.encode_blocks(values)
        return encoded.values, encoded.scales

    def decode(self, parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Exact in float32 and bfloat16."""
        return fp8.Fp8BlockTensor(*parts).dequantize(dtype)

    def check(self, parts: Sequence[Tensor]) -> None:
        """See `fp8.check`."""
        fp8.check(*parts)

    def is_sound(self, parts: Sequence[Tensor]) -> Tensor | None:
        """See `fp8.is_sound`."""
        return fp8.is_sound(*parts)


def get_format(name: FormatName, dtype: torch.dtype = torch.bfloat16) -> WeightFormat:
    """The format of this name; `dtype` is that of plain floats."""
    formats: dict[FormatName, WeightFormat] = {
        "bf16": Floats(dtype),
        "mxfp4": Mxfp4Format(),
        "fp8": Fp8RowFormat(),
        "fp8-block": Fp8BlockFormat(),
    }
    return formats[name]
