"""Reading slices of tensors from files, with several threads, ahead of whoever uses them.

Buffers form a ring. While one batch is being transformed, the next ones are read into the others; on a GPU they are
pinned, so that the copy to the device overlaps with both. `preadv` reads from the page cache at memory speed and does
not hold the interpreter lock; unlike a mapped file, what it has read is not counted as this process's memory.
"""

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from rose.errors import CheckpointError
from rose.weights.finite import FiniteCheck
from rose.weights.safetensors_header import TORCH_DTYPES, TensorInfo
from rose.weights.source import LoadTimes, Slice

_MAX_THREADS = 16
_NUM_BUFFERS = 4
_PIECE_BYTES = 8 << 20  # what one thread reads at a time
_ALIGNMENT = 64  # of each tensor in a buffer


class ParallelReader:
    """Reads batches of slices in order. Use it in a `with` statement."""

    def __init__(self, tensors: Mapping[str, TensorInfo], device: torch.device, times: LoadTimes) -> None:
        self._tensors = tensors
        self._device = device
        self._times = times
        self._pool = ThreadPoolExecutor(min(_MAX_THREADS, 2 * (os.cpu_count() or 1)), "rose-read")
        self._files: dict[Path, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        for descriptor in self._files.values():
            os.close(descriptor)

    def stream(self, batches: Sequence[Sequence[Slice]]) -> Iterator[list[Tensor]]:
        """See `WeightSource.stream`."""
        sizes = [sum(_aligned(self._num_bytes(part)) for part in batch) for batch in batches]
        count = min(_NUM_BUFFERS, len(batches))
        free = deque(_Buffer(max(sizes, default=0), self._device) for _ in range(count))
        reading: deque[tuple[Sequence[Slice], _Buffer, list[Tensor], list[Future[None]]]] = deque()
        check = FiniteCheck(self._tensors, at_once=self._device.type == "cpu")
        upcoming = iter(batches)
        while True:
            while free:
                batch = next(upcoming, None)
                if batch is None:
                    break
                buffer = free.popleft()
                buffer.wait()
                reading.append((batch, buffer, *self._start(batch, buffer)))
            if not reading:
                break
            batch, buffer, tensors, futures = reading.popleft()
            start = time.perf_counter()
            for future in futures:
                future.result()
            read = time.perf_counter()
            on_device = [tensor.to(self._device, non_blocking=True) for tensor in tensors]
            self._times.read_s += read - start
            self._times.copy_s += time.perf_counter() - read
            for part, tensor in zip(batch, on_device, strict=True):
                check.look_at(part, tensor)
            yield on_device
            buffer.used()
            free.append(buffer)
        for part in check.bad_slices():
            self._find_position(part)

    def _find_position(self, part: Slice) -> None:
        """Read a slice once more, on the CPU, where it is looked at more closely. Raises CheckpointError."""
        with ParallelReader(self._tensors, torch.device("cpu"), LoadTimes()) as again:
            list(again.stream([[part]]))

    def _num_bytes(self, part: Slice) -> int:
        info = self._tensors[part.name]
        return info.row_bytes * (part.stop - part.start)

    def _start(self, batch: Sequence[Slice], buffer: "_Buffer") -> tuple[list[Tensor], list[Future[None]]]:
        """Begin to read a batch; the tensors are there when the futures are done."""
        tensors: list[Tensor] = []
        futures: list[Future[None]] = []
        position = 0
        for part in batch:
            info, num_bytes = self._tensors[part.name], self._num_bytes(part)
            data = buffer.data[position : position + num_bytes]
            position += _aligned(num_bytes)
            shape = (part.stop - part.start, *info.shape[1:]) if info.shape else ()
            tensors.append(data.view(TORCH_DTYPES[info.dtype]).view(shape))
            offset, view = info.offset + part.start * info.row_bytes, data.numpy().data
            for at in range(0, num_bytes, _PIECE_BYTES):
                piece = view[at : at + _PIECE_BYTES]
                futures.append(self._pool.submit(self._read, info, offset + at, piece))
        return tensors, futures

    def _read(self, info: TensorInfo, offset: int, target: memoryview) -> None:
        try:
            descriptor = self._open(info.file)
            done = 0
            while done < len(target):
                count = os.preadv(descriptor, [target[done:]], offset + done)
                if count == 0:
                    raise OSError(f"the file ends at {offset + done}")
                done += count
        except OSError as error:
            raise CheckpointError(f"{info.file}: cannot read {info.name}: {error}") from error

    def _open(self, path: Path) -> int:
        descriptor = self._files.get(path)
        if descriptor is None:
            descriptor = os.open(path, os.O_RDONLY)
            other = self._files.setdefault(path, descriptor)
            if other != descriptor:  # another thread was faster
                os.close(descriptor)
                descriptor = other
        return descriptor


class _Buffer:
    """Host memory for one batch, pinned where there is a GPU to copy to."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self.data = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._device = device
        self._event: torch.cuda.Event | None = None

    def used(self) -> None:
        """Say that all work that reads the buffer has been queued on the device."""
        if self._device.type == "cuda":
            with torch.cuda.device(self._device):
                self._event = torch.cuda.Event()
                self._event.record()

    def wait(self) -> None:
        """Wait until that work is done and the buffer can be written again."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
