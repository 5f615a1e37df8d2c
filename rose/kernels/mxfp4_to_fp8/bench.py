"""Times MXFP4 to FP8 on a job of a load, seven experts of gpt-oss: `python -m rose.kernels.mxfp4_to_fp8.bench`.

Beside it the reference, which makes the parts first and copies them. Bytes count what is read and what is written.
"""

from functools import partial

import torch
from torch import Tensor

from rose.kernels.mxfp4_to_fp8.op import mxfp4_to_fp8_
from rose.kernels.mxfp4_to_fp8.reference import mxfp4_to_fp8_reference_
from rose.kernels.timing import time_kernel
from rose.numerics.format import FormatName, get_format
from rose.numerics.fp8 import Fp8BlockTensor, Fp8RowTensor
from rose.numerics.mxfp4 import Mxfp4Tensor

_SHAPES = ((7, 5760, 2880), (14, 2880, 2880))  # gate and up, down


def main() -> None:
    """Print a line for each shape and kind of scale."""
    for shape in _SHAPES:
        blocks, scales = get_format("mxfp4").parts(shape)
        source = Mxfp4Tensor(
            torch.randint(0, 256, blocks.shape, dtype=torch.uint8, device="cuda"),
            torch.randint(114, 124, scales.shape, dtype=torch.uint8, device="cuda"),
        )
        outs: list[Fp8RowTensor | Fp8BlockTensor] = [
            Fp8RowTensor(*_empty("fp8", shape)),
            Fp8BlockTensor(*_empty("fp8-block", shape)),
        ]
        for out in outs:
            num_bytes = sum(t.nbytes for t in (source.blocks, source.scales, out.values, out.scales))
            for name, run in (("kernel", mxfp4_to_fp8_), ("reference", mxfp4_to_fp8_reference_)):
                seconds = time_kernel(partial(run, source, out))
                line = f"{list(shape)} {type(out).__name__:14} {name:9} {seconds * 1e6:9.1f} us"
                print(f"{line} {num_bytes / seconds / 1e12:5.2f} TB/s")


def _empty(name: FormatName, shape: tuple[int, ...]) -> list[Tensor]:
    return [torch.empty(part.shape, dtype=part.dtype, device="cuda") for part in get_format(name).parts(shape)]


if __name__ == "__main__":
    main()
