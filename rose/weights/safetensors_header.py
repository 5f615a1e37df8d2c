"""The header of a safetensors file: where each tensor's bytes are. Read and written here, without the tensors.

The format: 8 bytes of little-endian length, that many bytes of JSON, then the tensors' data without gaps. Source:
https://github.com/huggingface/safetensors#format.
"""

import json
import math
import stat
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rose.errors import CheckpointError
from rose.weights.missing_content import missing_content

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64,
}  # fmt: skip
TORCH_DTYPES = {
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "I32": torch.int32,
    "I64": torch.int64,
    "F64": torch.float64,
}
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
# The limit that the format's own library sets.
_MAX_HEADER_BYTES = 100_000_000
_ALIGNMENT = 8
_MAX_SHOWN = 200  # characters


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor is. dtype: the safetensors name, such as `BF16`. offset: of its first byte in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    file: Path
    offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one entry of the first dimension."""
        return self.num_bytes // self.shape[0] if self.shape and self.shape[0] else self.num_bytes


def read_header(path: Path) -> list[TensorInfo]:
    """The tensors of a file, in the order of their data.

    Raises CheckpointError, naming the file, unless header and file agree to the byte.
    """
    try:
        file_bytes = require_file(path)
        if fault := missing_content(path):
            raise ValueError(fault)
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\xff"))
            if length > min(_MAX_HEADER_BYTES, file_bytes - 8):
                raise ValueError(f"its header cannot be {length} bytes long, the file has {file_bytes}")
            header = json.loads(file.read(length).decode(), object_pairs_hook=_without_duplicates)
        if not isinstance(header, dict):
            raise ValueError("its header is not a JSON object")
        header.pop("__metadata__", None)
        data_start = 8 + length
        infos = [_read_entry(name, entry, path, data_start) for name, entry in header.items()]
        infos.sort(key=lambda info: (info.offset, info.num_bytes))
        _check_layout(infos, data_start, file_bytes)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a sound safetensors file: {error}") from error
    return infos


def require_file(path: Path) -> int:
    """The length of a file. Raises OSError for what is none, such as a pipe, whose end nobody would live to see."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is no file")
    return status.st_size


def make_header(tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """The first bytes of a file with these tensors, (name, dtype, shape), in this order of data."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, dtype, shape in tensors:
        num_bytes = math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + num_bytes]}
        offset += num_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def _read_entry(name: str, entry: Any, path: Path, data_start: int) -> TensorInfo:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(end)]}:
            pass
        case _:
            raise ValueError(f"{name} is described by {_shown(entry)}")
    if dtype not in BITS:
        raise ValueError(f"{name} has the unknown dtype {_shown(dtype)}")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{name} has the shape {_shown(shape)}")
    num_bytes = math.prod(shape) * BITS[dtype] // 8
    if end - start != num_bytes or start < 0:
        raise ValueError(f"{name}, {dtype} {_shown(shape)}, cannot be the bytes {_shown([start, end])}")
    return TensorInfo(name, dtype, tuple(shape), num_bytes, path, data_start + start)


def _check_layout(infos: list[TensorInfo], data_start: int, file_bytes: int) -> None:
    position = data_start
    for info in infos:
        if info.offset != position:
            raise ValueError(f"the data of {info.name} begins at {info.offset}, that before it ends at {position}")
        position += info.num_bytes
    if position != file_bytes:
        raise ValueError(f"its header describes {position} bytes, the file has {file_bytes}")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"its header names {twice} twice")
    return result


def _shown(value: Any) -> str:
    """What a damaged header says, as far as it fits a line."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
