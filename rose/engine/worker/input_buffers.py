"""Memory for the inputs of a step, on the host and on the device, at the same place for every step of a shape."""

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

    sampling_rows: rows of the hidden states to have logits for.
    """

    token_ids: Int64s  # [num_tokens]
    positions: Int64s  # [num_tokens]
    sampling_rows: Int64s  # [num_requests]
    cu_seqlens_q: Int32s  # [num_requests + 1]
    seq_lens: Int32s  # [num_requests]
    slot_mappings: list[Int64s]  # [num_tokens] each
    block_tables: list[Int32s]  # [num_requests, max_num_blocks] each


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A step's inputs, on the host to be written and on the device to be read. sampling_rows: [num_requests] int64."""

    host: HostInputs
    batch: ForwardBatch
    sampling_rows: Tensor
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
        host: list[npt.NDArray[Any]] = []
        device: list[Tensor] = []

        def place(start: int, size: tuple[int, ...], dtype: torch.dtype) -> None:
            end = start + dtype.itemsize * int(np.prod(size))
            host.append(self._host[start:end].view(dtype).view(size).numpy())
            device.append(self._device[start:end].view(dtype).view(size))

        num_bytes = self._layout(shape, place)
        num_groups = len(self._kv.spec.groups)
        slots, tables = slice(5, 5 + num_groups), slice(5 + num_groups, None)
        return StepInputs(
            host=HostInputs(host[0], host[1], host[2], host[3], host[4], host[slots], host[tables]),
            batch=ForwardBatch(
                token_ids=device[0],
                positions=device[1],
                cu_seqlens_q=device[3],
                seq_lens=device[4],
                max_query_len=shape.max_query_len,
                max_kv_len=shape.max_kv_len,
                layers=self._kv.layers(device[tables], device[slots]),
            ),
            sampling_rows=device[2],
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

    def _layout(self, shape: BatchShape, place: Callable[[int, tuple[int, ...], torch.dtype], None]) -> int:
        """Call `place` with the start in bytes, size and type of each input; returns the bytes of all."""
        num_tokens, num_requests = shape.num_tokens, shape.num_requests
        num_groups = len(self._kv.spec.groups)
        start = 0
        for size, dtype in (
            ((num_tokens,), torch.int64),
            ((num_tokens,), torch.int64),
            ((num_requests,), torch.int64),
            ((num_requests + 1,), torch.int32),
            ((num_requests,), torch.int32),
            *[((num_tokens,), torch.int64)] * num_groups,
            *[((num_requests, self._max_num_blocks), torch.int32)] * num_groups,
        ):
            place(start, size, dtype)
            start += -(-dtype.itemsize * int(np.prod(size)) // _ALIGNMENT) * _ALIGNMENT
        return start
