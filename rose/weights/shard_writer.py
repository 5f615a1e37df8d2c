"""Writing safetensors files whose tensors arrive in pieces: headers first, then every row at its place."""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from rose.models.weight_map import StoredTensor
from rose.weights.checkpoint import INDEX_NAME
from rose.weights.durable import write_durably
from rose.weights.safetensors_header import BITS, make_header

MAX_SHARD_BYTES = 5_000_000_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor goes. offset: of its first byte in the file."""

    tensor: StoredTensor
    file: str
    offset: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Which tensor goes into which file. headers: the first bytes of each file. sizes: of the whole files."""

    places: dict[str, Place]
    headers: dict[str, bytes]
    sizes: dict[str, int]


def plan_shards(tensors: Sequence[StoredTensor], *, max_bytes: int = MAX_SHARD_BYTES) -> ShardPlan:
    """Fill files in order, up to `max_bytes` each; a larger tensor has one of its own."""
    groups: list[list[StoredTensor]] = [[]]
    filled = 0
    for tensor in tensors:
        num_bytes = _num_bytes(tensor)
        if groups[-1] and filled + num_bytes > max_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += num_bytes
    places: dict[str, Place] = {}
    headers: dict[str, bytes] = {}
    sizes: dict[str, int] = {}
    for number, group in enumerate(groups, start=1):
        file = "model.safetensors" if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        header = make_header(((t.name, t.dtype, t.shape) for t in group), {"format": "pt"})
        offset = len(header)
        for tensor in group:
            num_bytes = _num_bytes(tensor)
            rows = tensor.shape[0] if tensor.shape else 1
            places[tensor.name] = Place(tensor, file, offset, num_bytes // max(rows, 1))
            offset += num_bytes
        headers[file], sizes[file] = header, offset
    return ShardPlan(places, headers, sizes)


class ShardWriter:
    """Files of a plan, open for writing in a folder. Use it in a `with` statement.

    Rows of one tensor must come in order; their hash is taken on the way. Threads may write different tensors at once.
    """

    def __init__(self, folder: Path, plan: ShardPlan) -> None:
        """Open the files, or make them. What is already in them stays."""
        self._plan = plan
        self._descriptors: dict[str, int] = {}
        for file, header in plan.headers.items():
            descriptor = os.open(folder / file, os.O_RDWR | os.O_CREAT, 0o644)
            self._descriptors[file] = descriptor
            os.truncate(descriptor, plan.sizes[file])
            _write(descriptor, header, 0)
        self._hashes = {name: hashlib.sha256() for name in plan.places}
        self._rows: dict[str, int] = defaultdict(int)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def write(self, name: str, start: int, rows: Tensor) -> None:
        """Write rows of a tensor, from row `start` on: a CPU tensor of the stored dtype and row shape."""
        place = self._plan.places[name]
        if start != self._rows[name]:
            raise ValueError(f"row {start} of {name} cannot follow row {self._rows[name]}")
        data = rows.contiguous().view(-1).view(torch.uint8).numpy().data
        self._hashes[name].update(data)
        _write(self._descriptors[place.file], data, place.offset + start * place.row_bytes)
        self._rows[name] += rows.shape[0] if rows.dim() else 1

    def digest(self, name: str) -> str:
        """The SHA-256 of a tensor's data, once it is complete."""
        return self._hashes[name].hexdigest()

    def sync(self) -> None:
        """Wait until everything written is on the disk."""
        for descriptor in self._descriptors.values():
            os.fsync(descriptor)


def write_index(folder: Path, plan: ShardPlan) -> None:
    """Write `model.safetensors.index.json` if there are several files; a single one needs none."""
    if len(plan.headers) == 1:
        return
    total = sum(plan.sizes[file] - len(header) for file, header in plan.headers.items())
    weight_map = {name: place.file for name, place in sorted(plan.places.items())}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    write_durably(folder / INDEX_NAME, json.dumps(index, indent=2) + "\n")


def _write(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while len(view):
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count


def _num_bytes(tensor: StoredTensor) -> int:
    return torch.Size(tensor.shape).numel() * BITS[tensor.dtype] // 8
