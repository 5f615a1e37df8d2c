"""Timing of kernels on a GPU, for the `bench.py` of each op."""

from collections.abc import Callable
from statistics import median

import torch

_FLUSH_BYTES = 256 << 20  # several times the L2 cache


def time_kernel(run: Callable[[], object], *, repeats: int = 15) -> float:
    """Median seconds of one call on the present stream, the L2 cache flushed before each.

    The flush also keeps the GPU busy while the host launches, so that launch time is not counted.
    """
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    for _ in range(3):
        run()
    events = []
    for _ in range(repeats):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        events.append((start, end))
    torch.cuda.synchronize()
    milliseconds: list[float] = [start.elapsed_time(end) for start, end in events]
    return median(milliseconds) / 1e3
