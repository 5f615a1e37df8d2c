"""Where weights come from, as loader and converter see it: files, or a random number generator."""

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
    """Seconds that a load waited for each thing: bytes from files, the way to the device, the change of format."""

    read_s: float = 0.0
    copy_s: float = 0.0
    transform_s: float = 0.0


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
