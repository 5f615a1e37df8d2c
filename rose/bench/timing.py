"""Timing work on a device that runs behind the host."""

import itertools
import time
from collections.abc import Callable

import torch


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_device(work: Callable[[int], object], device: torch.device, *, repeats: int, warmup: int = 3) -> list[float]:
    """Seconds that the device takes for each of `repeats` calls of `work`, which gets the call's number.

    On a GPU the clock is the device's own, so a call's launch is not counted as long as the device has a queue.
    """
    for index in range(warmup):
        work(index)
    synchronize(device)
    if device.type != "cuda":
        return [_time_host(work, index) for index in range(repeats)]
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for index in range(repeats):
        work(index)
        marks[index + 1].record()
    synchronize(device)
    return [begin.elapsed_time(end) / 1e3 for begin, end in itertools.pairwise(marks)]


def _time_host(work: Callable[[int], object], index: int) -> float:
    begin = time.perf_counter()
    work(index)
    return time.perf_counter() - begin
