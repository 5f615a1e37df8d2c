"""Reading slices of tensors from files, with several threads, ahead of whoever uses them.

Batches take turns in a ring of memory. While one is being transformed, the next ones are read behind it; for a GPU the
ring is pinned, so that the copy to the device overlaps with both. `preadv` reads from the page cache at memory speed
and does not hold the interpreter lock; unlike a mapped file, what it has read is not counted as this process's memory.
"""

import os
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
from rose.weights.source import LoadTimes, Slice, Stopwatch

_MAX_THREADS = 16
_RING_BATCHES = 4  # of the largest size; many more that are small
_PIECE_BYTES = 8 << 20  # what one thread reads at a time
_ALIGNMENT = 64  # of each tensor in the ring


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
        clock = Stopwatch()
        ring = _Ring(min(sum(sizes), _RING_BATCHES * max(sizes, default=0)), self._device)
        self._times.memory_s += clock.lap()
        reading: deque[tuple[Sequence[Slice], _Place, list[Tensor], list[Future[None]]]] = deque()
        check = FiniteCheck(self._tensors, at_once=self._device.type == "cpu")
        upcoming = deque(zip(batches, sizes, strict=True))
        while reading or upcoming:
            clock.lap()
            # The device is waited for only where there is nothing else to do.
            while upcoming and (place := ring.take(upcoming[0][1], wait=not reading)) is not None:
                batch, _ = upcoming.popleft()
                reading.append((batch, place, *self._start(batch, place.data)))
            batch, place, tensors, futures = reading.popleft()
            self._times.copy_s += clock.lap()
            for future in futures:
                future.result()
            self._times.read_s += clock.lap()
            on_device = [tensor.to(self._device, non_blocking=True) for tensor in tensors]
            for part, tensor in zip(batch, on_device, strict=True):
                check.look_at(part, tensor)
            self._times.copy_s += clock.lap()
            yield on_device
            place.leave()
        for part in check.bad_slices():
            self._find_position(part)

    def _find_position(self, part: Slice) -> None:
        """Read a slice once more, on the CPU, where it is looked at more closely. Raises CheckpointError."""
        with ParallelReader(self._tensors, torch.device("cpu"), LoadTimes()) as again:
            list(again.stream([[part]]))
        # A GPU found what a CPU does not: a file that changed meanwhile, or broken hardware.
        raise CheckpointError(f"{self._tensors[part.name].file}: {part.name} is not read twice as the same")

    def _num_bytes(self, part: Slice) -> int:
        info = self._tensors[part.name]
        return info.row_bytes * (part.stop - part.start)

    def _start(self, batch: Sequence[Slice], memory: Tensor) -> tuple[list[Tensor], list[Future[None]]]:
        """Begin to read a batch; the tensors are there when the futures are done."""
        tensors: list[Tensor] = []
        futures: list[Future[None]] = []
        position = 0
        for part in batch:
            info, num_bytes = self._tensors[part.name], self._num_bytes(part)
            data = memory[position : position + num_bytes]
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


class _Ring:
    """Host memory that batches take turns in, pinned where there is a GPU to copy to.

    Positions only grow; where one is in memory is its remainder. Places are left in the order in which they were taken.
    """

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self._memory = torch.empty(max(1, num_bytes), dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._device = device
        self._places: deque[_Place] = deque()
        self._next = 0

    def take(self, num_bytes: int, *, wait: bool) -> "_Place | None":
        """The next bytes, side by side; None while someone is there.

        wait: for the device, if it still uses what was left there; else None.
        """
        size, start = len(self._memory), self._next
        if start % size + num_bytes > size:
            start += size - start % size
        while self._places and start + num_bytes - self._places[0].start > size:
            if not self._places[0].is_free(wait=wait):
                return None
            self._places.popleft()
        self._next = start + num_bytes
        place = _Place(self._memory[start % size : start % size + num_bytes], start, self._device)
        self._places.append(place)
        return place


class _Place:
    """Of one batch in the ring. data: uint8. start: position."""

    def __init__(self, data: Tensor, start: int, device: torch.device) -> None:
        self.data = data
        self.start = start
        self._device = device
        self._is_left = False
        self._event: torch.cuda.Event | None = None

    def leave(self) -> None:
        """Say that all work that reads the data has been queued on the device."""
        self._is_left = True
        if self._device.type == "cuda":
            with torch.cuda.device(self._device):
                self._event = torch.cuda.Event()
                self._event.record()

    def is_free(self, *, wait: bool) -> bool:
        """Whether that work is done. wait: until it is."""
        if self._is_left and self._event is not None:
            if wait:
                self._event.synchronize()
            return bool(self._event.query())
        return self._is_left


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
