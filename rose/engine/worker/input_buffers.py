"""Memory for the inputs of a step, on the host and on the device, at the same place for every step of a shape."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rose.engine.worker.batch_shape import BatchShape
from rose.engine.worker.kv_tensors import KVTensors
from rose.layers.forward_batch import ForwardBatch

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

# What kernels are compiled for can depend on an address being a multiple of 16.
_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class HostInputs:
    """Where a step's inputs are written. Of each KV group: a block table and the slots; see `LayerKV`.

    sampling_rows: rows of the hidden states to have logits for, with the temperature and random number of each.
    """

    token_ids: Int64s  # [num_tokens]
    positions: Int64s  # [num_tokens]
    sampling_rows: Int64s  # [num_requests]
    temperatures: npt.NDArray[np.float32]  # [num_requests]
    uniforms: npt.NDArray[np.float64]  # [num_requests]
    cu_seqlens_q: Int32s  # [num_requests + 1]
    seq_lens: Int32s  # [num_requests]
    slot_mappings: list[Int64s]  # [num_tokens] each
    block_tables: list[Int32s]  # [num_requests, max_num_blocks] each


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A step's inputs, on the host to be written and on the device to be read."""

    host: HostInputs
    batch: ForwardBatch
    sampling_rows: Tensor  # [num_requests] int64
    temperatures: Tensor  # [num_requests] float32
    uniforms: Tensor  # [num_requests] float64
    num_bytes: int


class InputBuffers:
    """One buffer on either side, crossed by one copy a step; on a CPU both are the same memory."""

    def __init__(
        self, kv: KVTensors, *, max_num_tokens: int, max_num_requests: int, max_num_blocks: int, device: torch.device
    ) -> None:
        """max_num_blocks: in a request's block table."""
        self._kv = kv
        self._max_num_blocks = max_num_blocks
        is_cuda = device.type == "cuda"
        size = self._layout(BatchShape(max_num_tokens, max_num_requests, max_num_tokens, 0), lambda *_: None)
        self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=is_cuda)
        self._device = torch.zeros(size, dtype=torch.uint8, device=device) if is_cuda else self._host
        self._copied = torch.cuda.Event() if is_cuda else None

    def inputs(self, shape: BatchShape) -> StepInputs:
        """The places of inputs of this shape. They share their memory with those of other shapes."""
        host: dict[str, list[npt.NDArray[Any]]] = {}
        device: dict[str, list[Tensor]] = {}

        def place(name: str, start: int, size: tuple[int, ...], dtype: torch.dtype) -> None:
            end = start + dtype.itemsize * math.prod(size)
            host.setdefault(name, []).append(self._host[start:end].view(dtype).view(size).numpy())
            device.setdefault(name, []).append(self._device[start:end].view(dtype).view(size))

        num_bytes = self._layout(shape, place)
        return StepInputs(
            host=HostInputs(
                **{name: host[name][0] for name in ("token_ids", "positions", "sampling_rows", "temperatures")},
                **{name: host[name][0] for name in ("uniforms", "cu_seqlens_q", "seq_lens")},
                slot_mappings=host["slot_mappings"],
                block_tables=host["block_tables"],
            ),
            batch=ForwardBatch(
                **{name: device[name][0] for name in ("token_ids", "positions", "cu_seqlens_q", "seq_lens")},
                max_query_len=shape.max_query_len,
                max_kv_len=shape.max_kv_len,
                layers=self._kv.layers(device["block_tables"], device["slot_mappings"]),
            ),
            **{name: device[name][0] for name in ("sampling_rows", "temperatures", "uniforms")},
            num_bytes=num_bytes,
        )

    def wait(self) -> None:
        """Until the host's buffer may be written: a copy of what it held may still be on its way."""
        if self._copied is not None:
            self._copied.synchronize()

    def send(self, inputs: StepInputs) -> None:
        """Copy what was written to the device."""
        if self._copied is not None:
            self._device[: inputs.num_bytes].copy_(self._host[: inputs.num_bytes], non_blocking=True)
            self._copied.record()

    def _layout(self, shape: BatchShape, place: Callable[[str, int, tuple[int, ...], torch.dtype], None]) -> int:
        """Call `place` with the name, start in bytes, size and type of each input; returns the bytes of all."""
        num_tokens, num_requests = shape.num_tokens, shape.num_requests
        num_groups = len(self._kv.spec.groups)
        start = 0
        for name, size, dtype in (
            ("token_ids", (num_tokens,), torch.int64),
            ("positions", (num_tokens,), torch.int64),
            ("sampling_rows", (num_requests,), torch.int64),
            ("temperatures", (num_requests,), torch.float32),
            ("uniforms", (num_requests,), torch.float64),
            ("cu_seqlens_q", (num_requests + 1,), torch.int32),
            ("seq_lens", (num_requests,), torch.int32),
            *[("slot_mappings", (num_tokens,), torch.int64)] * num_groups,
            *[("block_tables", (num_requests, self._max_num_blocks), torch.int32)] * num_groups,
        ):
            place(name, start, size, dtype)
            start += -(-dtype.itemsize * math.prod(size) // _ALIGNMENT) * _ALIGNMENT
        return start
