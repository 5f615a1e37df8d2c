"""A checkpoint's files: its config, and its tensors read lazily from one or more safetensors files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from rose.errors import CheckpointError
from rose.weights.resolve import resolve_checkpoint as resolve_checkpoint

_INDEX_NAME = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a file's header says of a tensor. dtype: the safetensors name, such as `BF16`. num_bytes: of its data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    file: Path


class Checkpoint:
    """The config and tensors of a folder. Opening it reads headers only.

    config: the parsed config.json. tensors: by name, file by file.
    """

    def __init__(self, folder: Path) -> None:
        """Read the headers. Raises CheckpointError, naming the file, when one is missing, damaged or contradictory."""
        self.folder = folder
        self.config_path = folder / "config.json"
        self.config: Mapping[str, Any] = read_json_object(self.config_path)
        self.tensors: dict[str, TensorInfo] = {}
        index_path = folder / _INDEX_NAME
        if index_path.is_file():
            self._read_indexed(index_path)
        else:
            self._read_all()

    @property
    def num_bytes(self) -> int:
        """Bytes of tensor data."""
        return sum(info.num_bytes for info in self.tensors.values())

    def read(self, name: str) -> torch.Tensor:
        """The tensor, on the CPU, in its own dtype, mapped from the file. Raises CheckpointError."""
        info = self.tensors[name]
        try:
            # Opened anew each time: a file that stays mapped counts, page by page, as this process's memory.
            with safe_open(info.file, framework="pt", device="cpu") as file:
                tensor: torch.Tensor = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{info.file}: cannot read {name}: {error}") from error
        return tensor

    def _read_indexed(self, index_path: Path) -> None:
        file_of_tensor = _read_index(index_path)
        for path in sorted({self.folder / file_name for file_name in file_of_tensor.values()}):
            if not path.is_file():
                raise CheckpointError(f"{index_path} names {path.name}, which is missing")
            self._read_header(path)
        self._check_index(index_path, file_of_tensor)

    def _read_all(self) -> None:
        paths = sorted(self.folder.glob("*.safetensors"))
        if not paths:
            raise CheckpointError(f"{self.folder} has no *.safetensors file")
        for path in paths:
            self._read_header(path)

    def _read_header(self, path: Path) -> None:
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                for name in file.keys():  # noqa: SIM118  (it is not a mapping)
                    part = file.get_slice(name)
                    dtype, shape = str(part.get_dtype()), tuple(part.get_shape())
                    if name in self.tensors:
                        raise CheckpointError(f"{name} is in both {self.tensors[name].file} and {path}")
                    self.tensors[name] = TensorInfo(name, dtype, shape, _num_bytes(dtype, shape), path)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is not a sound safetensors file: {error}") from error

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
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name -> file name."""
    weight_map = read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise CheckpointError(f"{path}: weight_map must map tensor names to file names")
    return weight_map


def _num_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor; safetensors names end in the number of bits, but for BOOL and the F8 variants."""
    bits = {"BOOL": 8}.get(dtype) or (8 if dtype.startswith("F8") else int(dtype.lstrip("BCFIU").split("_")[0]))
    return torch.Size(shape).numel() * bits // 8
