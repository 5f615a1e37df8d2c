"""Where weights come from, as loader and converter see it: files, or a random number generator."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from rose.weights.safetensors_header import TensorInfo


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows `start` to `stop` of a tensor, along its first dimension. A tensor of no dimensions has one row."""

    name: str
    start: int
    stop: int


@dataclass(slots=True)
class LoadTimes:
    """Seconds of a load, by what the host did or waited for.

    open_s: a source's headers. plan_s: where everything goes. memory_s: memory for parameters and to read into. read_s:
    bytes from files. copy_s: the way to the device, with what else the device had to do before memory was free again.
    transform_s: the change of format, as far as the host takes part in it. finish_s: what layers do afterwards, and the
    end of all work on the device.
    """

    open_s: float = 0.0
    plan_s: float = 0.0
    memory_s: float = 0.0
    read_s: float = 0.0
    copy_s: float = 0.0
    transform_s: float = 0.0
    finish_s: float = 0.0


class Stopwatch:
    """Tells one thing's time after the other's."""

    def __init__(self) -> None:
        self._before = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap, or since the watch was made."""
        before, self._before = self._before, time.perf_counter()
        return self._before - before


class WeightSource(Protocol):
    """A config and tensors that can be read slice by slice.

    config: as in config.json. config_path: what messages call it. tensors: by name.
    """

    config: Mapping[str, Any]
    config_path: Path
    tensors: dict[str, TensorInfo]

    @property
    def name(self) -> str:
        """What messages call the whole."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes of tensor data."""
        ...

    def stream(
        self, batches: Sequence[Sequence[Slice]], device: torch.device, times: LoadTimes
    ) -> Iterator[list[Tensor]]:
        """The tensors of each batch of slices on `device`, in their own dtypes.

        They are valid until the next batch is asked for: their memory is used again. Raises CheckpointError. times:
        added to.
        """
        ...
