"""A checkpoint's files: its config, and its tensors read lazily from one or more safetensors files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

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
    """The config and tensors of a folder. Opening reads headers only; close it, or use it in a `with` statement.

    config: the parsed config.json. tensors: by name, in order of file and offset.
    """

    def __init__(self, folder: Path) -> None:
        """Open the files. Raises CheckpointError, naming the file, when one is missing, damaged or contradictory."""
        self.folder = folder
        self.config_path = folder / "config.json"
        self.config: Mapping[str, Any] = read_json_object(self.config_path)
        self.tensors: dict[str, TensorInfo] = {}
        self._files: dict[Path, Any] = {}
        try:
            self._open_files()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every file."""
        for handle in self._files.values():
            handle.__exit__(None, None, None)
        self._files.clear()

    @property
    def num_bytes(self) -> int:
        """Bytes of tensor data."""
        return sum(info.num_bytes for info in self.tensors.values())

    def read(self, name: str) -> torch.Tensor:
        """The tensor, on the CPU, in its own dtype. Raises CheckpointError."""
        info = self.tensors[name]
        try:
            tensor: torch.Tensor = self._files[info.file].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{info.file}: cannot read {name}: {error}") from error
        return tensor

    def _open_files(self) -> None:
        index_path = self.folder / _INDEX_NAME
        if index_path.is_file():
            file_of_tensor = _read_index(index_path)
            for path in sorted({self.folder / file_name for file_name in file_of_tensor.values()}):
                if not path.is_file():
                    raise CheckpointError(f"{index_path} names {path.name}, which is missing")
                self._open_file(path)
            self._check_index(index_path, file_of_tensor)
            return
        paths = sorted(self.folder.glob("*.safetensors"))
        if not paths:
            raise CheckpointError(f"{self.folder} has no *.safetensors file")
        for path in paths:
            self._open_file(path)

    def _open_file(self, path: Path) -> None:
        try:
            handle: Any = safe_open(path, framework="pt", device="cpu")
            self._files[path] = handle.__enter__()
            for name in handle.keys():  # noqa: SIM118  (the handle is not a mapping)
                tensor_slice = handle.get_slice(name)
                dtype, shape = str(tensor_slice.get_dtype()), tuple(tensor_slice.get_shape())
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
