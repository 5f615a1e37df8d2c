"""A checkpoint's files: its config, and its tensors read lazily from one or more safetensors files."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rose.errors import CheckpointError
from rose.weights.manifest import check_manifest, read_manifest
from rose.weights.reading import ParallelReader
from rose.weights.safetensors_header import TORCH_DTYPES, TensorInfo, read_header, require_file
from rose.weights.source import LoadTimes, Slice

INDEX_NAME = "model.safetensors.index.json"


class Checkpoint:
    """The config and tensors of a folder. Opening it reads headers only. See `WeightSource`.

    config: the parsed config.json. tensors: by name, file by file. manifest: of `rose convert`, if that wrote the
    folder.
    """

    def __init__(self, folder: Path) -> None:
        """Read the headers. Raises CheckpointError, naming the file, when one is missing, damaged or contradictory."""
        self.folder = folder
        self.config_path = folder / "config.json"
        self.config: Mapping[str, Any] = read_json_object(self.config_path)
        self.tensors: dict[str, TensorInfo] = {}
        self._versions: dict[Path, tuple[int, int]] = {}
        index_path = folder / INDEX_NAME
        if index_path.is_file():
            self._read_indexed(index_path)
        else:
            self._read_all()
        self.manifest = read_manifest(folder)
        if self.manifest is not None:
            check_manifest(folder, self.manifest, self.config, self.tensors)

    @property
    def name(self) -> str:
        """The folder."""
        return str(self.folder)

    @property
    def num_bytes(self) -> int:
        """Bytes of tensor data."""
        return sum(info.num_bytes for info in self.tensors.values())

    def read(self, name: str) -> Tensor:
        """The tensor, on the CPU, in its own dtype. Raises CheckpointError."""
        whole = [Slice(name, 0, max(self.tensors[name].shape[:1], default=1))]
        ((tensor,),) = self.stream([whole], torch.device("cpu"), LoadTimes())
        return tensor.clone()

    def stream(
        self, batches: Sequence[Sequence[Slice]], device: torch.device, times: LoadTimes
    ) -> Iterator[list[Tensor]]:
        """See `WeightSource.stream`. Several threads read ahead of the caller.

        At the end the files must be those whose headers were read: another model's weights could have the same shapes.
        """
        for batch in batches:
            for part in batch:
                if self.tensors[part.name].dtype not in TORCH_DTYPES:
                    raise CheckpointError(f"{self.tensors[part.name].file}: {part.name} has a dtype that is not read")
        with ParallelReader(self.tensors, device, times) as reader:
            yield from reader.stream(batches)
        for path in sorted({self.tensors[part.name].file for batch in batches for part in batch}):
            if _version(path) != self._versions[path]:
                raise CheckpointError(f"{path} changed while it was read")

    def _read_indexed(self, index_path: Path) -> None:
        file_of_tensor = _read_index(index_path)
        for path in sorted({self.folder / file_name for file_name in file_of_tensor.values()}):
            try:
                is_missing = not path.is_file()
            except OSError as error:  # a name too long, for one
                raise CheckpointError(f"{index_path} names a file that cannot be looked at: {error}") from error
            if is_missing:
                raise CheckpointError(f"{index_path} names {path.name}, which is missing")
            self._add_file(path)
        self._check_index(index_path, file_of_tensor)

    def _read_all(self) -> None:
        paths = sorted(self.folder.glob("*.safetensors"))
        if not paths:
            raise CheckpointError(f"{self.folder} has no *.safetensors file")
        for path in paths:
            self._add_file(path)

    def _add_file(self, path: Path) -> None:
        self._versions[path] = _version(path)
        for info in read_header(path):
            if info.name in self.tensors:
                raise CheckpointError(f"{info.name} is in both {self.tensors[info.name].file} and {path}")
            self.tensors[info.name] = info

    def _check_index(self, index_path: Path, file_of_tensor: Mapping[str, str]) -> None:
        for name, file_name in file_of_tensor.items():
            if name not in self.tensors or self.tensors[name].file.name != file_name:
                raise CheckpointError(f"{index_path} says that {name} is in {file_name}, which does not hold it")
        for info in self.tensors.values():
            if info.name not in file_of_tensor:
                raise CheckpointError(f"{info.file} holds {info.name}, which {index_path} does not name")


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises CheckpointError."""
    try:
        require_file(path)
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value


def _version(path: Path) -> tuple[int, int]:
    """What is another when a file was written to or replaced: its length and time. Raises CheckpointError."""
    try:
        status = path.stat()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return status.st_size, status.st_mtime_ns


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name -> file name."""
    weight_map = read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise CheckpointError(f"{path}: weight_map must map tensor names to file names")
    return weight_map
