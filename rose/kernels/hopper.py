"""Whether the fast backends can run: which GPU this is, and what is installed for it."""

import functools
import importlib.util

import torch
from torch import Tensor

from rose.log import get_logger

logger = get_logger(__name__)


@functools.cache
def _is_hopper(device_index: int) -> bool:
    """Decided once for a GPU, and logged."""
    name, capability = torch.cuda.get_device_name(device_index), torch.cuda.get_device_capability(device_index)
    missing = [package for package in ("triton", "cuda.bindings") if not _is_installed(package)]
    if capability == (9, 0) and not missing:
        logger.info("%s: fast kernels (Triton, CUDA C++)", name)
        return True
    reason = f"without {', '.join(missing)}" if missing else f"of compute capability {capability[0]}.{capability[1]}"
    logger.warning("%s, %s: reference kernels, which are slow", name, reason)
    return False


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the parent of a dotted name
        return False


def is_hopper(device: torch.device) -> bool:
    """Whether the fast backends are made for this device and can run here."""
    return device.type == "cuda" and _is_hopper(torch.cuda.current_device() if device.index is None else device.index)


def on_hopper(tensor: Tensor) -> bool:
    """Whether this tensor is on a GPU that the fast backends are written for."""
    return tensor.is_cuda and _is_hopper(tensor.device.index)
