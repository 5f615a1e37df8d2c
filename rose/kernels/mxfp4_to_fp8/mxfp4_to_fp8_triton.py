"""`mxfp4_to_fp8_` in Triton: one program for each group that shares a scale, which reads it once."""

# Triton's device functions are not Python.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import math

import torch
import triton
import triton.language as tl

from rose.numerics.fp8 import BLOCK, Fp8BlockTensor, Fp8RowTensor
from rose.numerics.mxfp4 import BLOCK_ELEMENTS, Mxfp4Tensor


@triton.jit
def _e4m3_code(code, shift):
    """The E4M3 code, int32, of an FP4 code, of which bit 3 is the sign, times 2**shift with shift from -13 to 9."""
    magnitude = code & 7
    # Four times the number: 0 2 4 6 8 12 16 24.
    quadruple = tl.where(magnitude < 2, 2 * magnitude, (2 + (magnitude & 1)) << (magnitude >> 1))
    x = quadruple.to(tl.float32) * ((shift + 125) << 23).to(tl.float32, bitcast=True)
    bits = x.to(tl.int32, bitcast=True)
    # Floats at 2**14 are 2**-9 apart, as E4M3's subnormal numbers are: the sum rounds, and its last bits are the code.
    subnormal = (x + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    # Else one bit of mantissa is all there is; exponents are biased by 7 instead of 127.
    normal = (bits >> 20) - ((127 - 7) << 3)
    return tl.where(x < 0.015625, subnormal, normal) | ((code & 8) << 4)


@triton.jit
def _group_kernel(
    blocks_ptr, exponents_ptr, values_ptr, scales_ptr, num_rows, NUM_BLOCKS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A group is ROWS rows, COLUMNS blocks wide; of matrices of num_rows rows, NUM_BLOCKS wide. values: int16 pairs."""
    i = tl.arange(0, ROWS * COLUMNS)
    row = tl.program_id(0) * ROWS + i // COLUMNS
    column = tl.program_id(1) * COLUMNS + i % COLUMNS
    inside = (row < num_rows) & (column < NUM_BLOCKS)
    block = (tl.program_id(2).to(tl.int64) * num_rows + row) * NUM_BLOCKS + column
    at = block[:, None] * 16 + tl.arange(0, 16)[None, :]
    pairs = tl.load(blocks_ptr + at, mask=inside[:, None], other=0).to(tl.int32)  # [ROWS * COLUMNS, 16]
    exponents = tl.load(exponents_ptr + block, mask=inside, other=0).to(tl.int32) - 127

    largest = tl.max(tl.maximum(pairs & 7, (pairs >> 4) & 7), 1)
    leading = tl.max(tl.where(largest > 0, exponents + (largest >> 1) - 1, -10000), 0)
    scale = tl.where(leading > -10000, tl.maximum(leading - 8, -126), 0)
    # Out of these bounds are zeros, and at the lowest everything rounds to zero.
    shift = tl.minimum(tl.maximum(exponents - scale, -13), 9)[:, None]

    codes = _e4m3_code(pairs & 15, shift) | (_e4m3_code(pairs >> 4, shift) << 8)
    tl.store(values_ptr + at, codes.to(tl.int16), mask=inside[:, None])
    group = (tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)) * tl.num_programs(1) + tl.program_id(1)
    tl.store(scales_ptr + group, ((scale + 127) << 23).to(tl.float32, bitcast=True))


def mxfp4_to_fp8_triton_(source: Mxfp4Tensor, out: Fp8RowTensor | Fp8BlockTensor) -> None:
    """See `op.py`."""
    *outer, num_rows, num_blocks = source.scales.shape
    num_matrices = math.prod(outer)
    if isinstance(out, Fp8RowTensor):
        num_rows, num_matrices = num_rows * num_matrices, 1
        rows, columns = 1, triton.next_power_of_2(num_blocks)
    else:
        rows, columns = BLOCK, BLOCK // BLOCK_ELEMENTS
    grid = (triton.cdiv(num_rows, rows), triton.cdiv(num_blocks, columns), num_matrices)
    _group_kernel[grid](
        source.blocks, source.scales, out.values.view(torch.int16), out.scales, num_rows, num_blocks, rows, columns,
        num_warps=4,
    )  # fmt: skip
