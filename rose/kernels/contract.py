"""Checks that ops share: a violated contract is an `UnsupportedShape` that gives the values."""

import torch
from torch import Tensor

from rose.errors import UnsupportedShape

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def require(condition: bool, op: str, message: str) -> None:
    """Raise UnsupportedShape unless `condition` holds."""
    if not condition:
        raise UnsupportedShape(f"{op}: {message}")


def require_shape(op: str, name: str, tensor: Tensor, shape: tuple[int | None, ...]) -> None:
    """Raise UnsupportedShape unless `tensor` has this shape; None stands for any size."""
    actual = tuple(tensor.shape)
    wanted_or_any = tuple(have if want is None else want for have, want in zip(actual, shape, strict=False))
    if len(actual) != len(shape) or actual != wanted_or_any:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise UnsupportedShape(f"{op}: {name} must have shape [{wanted}], got {list(actual)}")


def require_dtype(op: str, name: str, tensor: Tensor, *dtypes: torch.dtype) -> None:
    """Raise UnsupportedShape unless `tensor` has one of these dtypes."""
    if tensor.dtype not in dtypes:
        raise UnsupportedShape(f"{op}: {name} must be {' or '.join(map(str, dtypes))}, got {tensor.dtype}")


def require_contiguous(op: str, name: str, tensor: Tensor) -> None:
    """Raise UnsupportedShape unless `tensor` lies in memory in order, without gaps."""
    if not tensor.is_contiguous():
        raise UnsupportedShape(f"{op}: {name} must be contiguous, got strides {tensor.stride()}")


def require_unit_stride(op: str, name: str, tensor: Tensor) -> None:
    """Raise UnsupportedShape unless neighbours along the last dimension are neighbours in memory."""
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise UnsupportedShape(f"{op}: {name} must be contiguous in its last dimension, got strides {tensor.stride()}")
