"""The KV cache's memory, and each layer's share of it."""

import math
import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rose.engine.config import EngineConfig
from rose.engine.kv_cache.plan import GIB
from rose.engine.kv_cache.spec import KVCacheSpec
from rose.layers.forward_batch import LayerKV

_MEMINFO = Path("/proc/meminfo")
_CPU_SHARE = 0.25
_CPU_LIMIT_BYTES = 4 * GIB


class KVTensors:
    """`spec.num_tensors` tensors of [2, num_blocks, block_size, num_kv_heads, head_dim]; [0] is keys, [1] values."""

    def __init__(self, spec: KVCacheSpec, num_blocks: int, *, device: torch.device, dtype: torch.dtype) -> None:
        self.spec = spec
        shape = (2, num_blocks, spec.block_size, spec.num_kv_heads, spec.head_dim)
        self.tensors = [_zeros(shape, device, dtype) for _ in range(spec.num_tensors)]
        places = {
            layer: (index, self.tensors[tensor])
            for index, group in enumerate(spec.groups)
            for tensor, layer in enumerate(group.layers)
        }
        # By layer: its group, keys and values. Taken apart once, since every step asks for them.
        self._layers = [(group, tensor[0], tensor[1]) for _, (group, tensor) in sorted(places.items())]

    def layers(self, block_tables: list[Tensor], slot_mappings: list[Tensor]) -> tuple[LayerKV, ...]:
        """Each layer's cache with its group's block table and slots, both given by group."""
        return tuple(
            LayerKV(key=key, value=value, block_table=block_tables[group], slot_mapping=slot_mappings[group])
            for group, key, value in self._layers
        )


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros, so that a masked read of a block never written meets no NaN."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    # numpy maps zero pages and touches none: a CPU's cache takes memory only as it fills.
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)


def available_kv_bytes(config: EngineConfig, device: torch.device, *, activation_bytes: int) -> int:
    """Memory for the KV cache, with the model already loaded.

    On a GPU: what `gpu_memory_utilization` leaves after all that is in use, here or by other processes, and
    `activation_bytes`. On a CPU: a quarter of the available memory, at most 4 GiB.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        # Blocks that torch keeps for reuse are free to us, though not to the driver.
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(total * config.gpu_memory_utilization) - (total - free) - activation_bytes
    return min(int(_available_memory_bytes() * _CPU_SHARE), _CPU_LIMIT_BYTES)


def _available_memory_bytes() -> int:
    """Of the whole machine, with what the page cache would give back: on a machine that reads files, most of it."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", _MEMINFO.read_text(), re.MULTILINE)
    except OSError:  # not every system tells
        found = None
    return int(found[1]) * 1024 if found else _CPU_LIMIT_BYTES
