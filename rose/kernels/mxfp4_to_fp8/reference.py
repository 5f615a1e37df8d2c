"""`mxfp4_to_fp8_` in plain torch."""

from rose.numerics.fp8 import Fp8BlockTensor, Fp8RowTensor
from rose.numerics.mxfp4 import Mxfp4Tensor
from rose.numerics.mxfp4_to_fp8 import to_fp8_blocks, to_fp8_rows


def mxfp4_to_fp8_reference_(source: Mxfp4Tensor, out: Fp8RowTensor | Fp8BlockTensor) -> None:
    """See `op.py`."""
    made = to_fp8_rows(source) if isinstance(out, Fp8RowTensor) else to_fp8_blocks(source)
    out.values.copy_(made.values)
    out.scales.copy_(made.scales)
