"""MXFP4 weights as FP8 E4M3 with power-of-two scales, written straight into the memory they are to have.

A group is a row, or a block of 128 x 128, of a matrix. With hi the exponent of the leading bit of its largest number:

    scale = 2**max(hi - 8, -126), or 1 for a group of zeros;    values = source / scale, rounded to E4M3

to nearest, ties to even; minus zero stays. This is exact wherever any power of two would be: see
`rose.numerics.mxfp4_to_fp8`.

source: blocks [..., out_features, in_features / 32, 16] and scales [..., out_features, in_features / 32], uint8. No
scale is 255, which is not checked: that would wait for the device. out: written in place; values [..., out_features,
in_features] float8_e4m3fn; scales float32, [..., out_features] of an `Fp8RowTensor` or [..., ceil(out_features / 128),
ceil(in_features / 128)] of an `Fp8BlockTensor`, which has at most 65535 matrices. All are contiguous.
Hardware: any; on Hopper no host synchronisation and no other memory. The bits are the same everywhere. Source: OCP
Microscaling Formats (MX) Specification 1.0; Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433.
"""

import torch

from rose.kernels.contract import require_contiguous, require_dtype, require_shape
from rose.kernels.hopper import on_hopper
from rose.kernels.mxfp4_to_fp8.reference import mxfp4_to_fp8_reference_
from rose.numerics.fp8 import BLOCK, E4M3, Fp8BlockTensor, Fp8RowTensor
from rose.numerics.mxfp4 import BLOCK_BYTES, Mxfp4Tensor

_OP = "mxfp4_to_fp8"


def mxfp4_to_fp8_(source: Mxfp4Tensor, out: Fp8RowTensor | Fp8BlockTensor) -> None:
    """Write `out`; see the module's contract. Raises UnsupportedShape."""
    *outer, out_features, in_features = source.shape
    if isinstance(out, Fp8RowTensor):
        scales_shape = (*outer, out_features)
    else:
        scales_shape = (*outer, -(-out_features // BLOCK), -(-in_features // BLOCK))
    tensors = {
        "blocks": (source.blocks, torch.uint8, (*source.scales.shape, BLOCK_BYTES)),
        "source's scales": (source.scales, torch.uint8, tuple(source.scales.shape)),
        "values": (out.values, E4M3, source.shape),
        "scales": (out.scales, torch.float32, scales_shape),
    }
    for name, (tensor, dtype, shape) in tensors.items():
        require_shape(_OP, name, tensor, shape)
        require_dtype(_OP, name, tensor, dtype)
        require_contiguous(_OP, name, tensor)
    if on_hopper(source.blocks) and source.blocks.numel() > 0:
        from rose.kernels.mxfp4_to_fp8.mxfp4_to_fp8_triton import mxfp4_to_fp8_triton_

        mxfp4_to_fp8_triton_(source, out)
    else:
        mxfp4_to_fp8_reference_(source, out)
