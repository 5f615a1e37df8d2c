"""The workers' copy of each running request, and the `ForwardBatch` of one step made from it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rose.engine.scheduler_output import NewRequest, ScheduledRequest, SchedulerOutput
from rose.engine.worker.kv_tensors import KVTensors
from rose.engine.worker.sampler import SamplingRow
from rose.layers.forward_batch import ForwardBatch

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Held:
    request: NewRequest
    row: int
    num_tokens: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step's batch; which of its requests sample, by key; and the row of hidden states each samples from."""

    batch: ForwardBatch
    sampling_keys: list[int]
    sampling_rows: Tensor  # [num_sampling] int64


class InputBatch:
    """Token ids and block tables of up to `max_num_seqs` requests, one row each, on the host."""

    def __init__(self, kv: KVTensors, *, max_num_seqs: int, max_model_len: int, device: torch.device) -> None:
        self._kv = kv
        self._device = device
        max_num_blocks = kv.spec.blocks_for(max_model_len)
        self._token_ids = np.zeros((max_num_seqs, max_model_len), dtype=np.int64)
        self._block_tables = [np.zeros((max_num_seqs, max_num_blocks), dtype=np.int32) for _ in kv.spec.groups]
        self._held: dict[int, _Held] = {}
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))

    def apply(self, output: SchedulerOutput) -> None:
        """Bring the copy up to date with the scheduler."""
        for key in output.dropped:
            self._free_rows.append(self._held.pop(key).row)
        for new in output.new:
            self._add(new)
        for scheduled in output.scheduled:
            if any(scheduled.new_blocks):
                self._append_blocks(scheduled)

    def build(self, scheduled: list[ScheduledRequest]) -> StepInputs:
        """The batch of a step, on the device. The order of its requests is that of `scheduled`."""
        rows = np.array([self._held[s.key].row for s in scheduled])
        starts = np.array([s.num_computed_tokens for s in scheduled])
        counts = np.array([s.num_tokens for s in scheduled])
        ends = starts + counts
        cu_seqlens = np.zeros(len(scheduled) + 1, dtype=np.int32)
        np.cumsum(counts, out=cu_seqlens[1:])
        token_rows = np.repeat(rows, counts)
        positions: Ints = np.arange(cu_seqlens[-1]) + np.repeat(starts - cu_seqlens[:-1], counts)
        num_blocks = self._kv.spec.blocks_for(int(ends.max()))
        samples = [self._held[s.key].num_tokens <= end for s, end in zip(scheduled, ends, strict=True)]
        batch = ForwardBatch(
            token_ids=self._to_device(self._token_ids[token_rows, positions]),
            positions=self._to_device(positions),
            cu_seqlens_q=self._to_device(cu_seqlens),
            seq_lens=self._to_device(ends.astype(np.int32)),
            max_query_len=int(counts.max()),
            max_kv_len=int(ends.max()),
            layers=self._kv.layers(
                [self._to_device(table[rows, :num_blocks]) for table in self._block_tables],
                [self._to_device(self._slots(table, token_rows, positions)) for table in self._block_tables],
            ),
        )
        return StepInputs(
            batch=batch,
            sampling_keys=[s.key for s, sample in zip(scheduled, samples, strict=True) if sample],
            sampling_rows=self._to_device(cu_seqlens[1:][samples].astype(np.int64) - 1),
        )

    def sampling_row(self, key: int) -> SamplingRow:
        """What the sampler must know of a request."""
        held = self._held[key]
        tokens = self._token_ids[held.row]
        return SamplingRow(
            params=held.request.params,
            seed=held.request.seed,
            stop_ids=held.request.stop_ids,
            prompt_token_ids=tokens[: held.request.num_prompt_tokens],
            output_token_ids=tokens[held.request.num_prompt_tokens : held.num_tokens],
        )

    def append_token(self, key: int, token_id: int) -> None:
        """The request's next token was sampled."""
        held = self._held[key]
        if held.num_tokens < self._token_ids.shape[1]:  # the very last one is never computed
            self._token_ids[held.row, held.num_tokens] = token_id
        held.num_tokens += 1

    def _add(self, new: NewRequest) -> None:
        row = self._free_rows.pop()
        self._token_ids[row, : len(new.token_ids)] = new.token_ids
        for table, blocks in zip(self._block_tables, new.block_tables, strict=True):
            table[row, : len(blocks)] = blocks
        self._held[new.key] = _Held(new, row, len(new.token_ids), len(new.block_tables[0]))

    def _append_blocks(self, scheduled: ScheduledRequest) -> None:
        held = self._held[scheduled.key]
        end = held.num_blocks + len(scheduled.new_blocks[0])
        for table, blocks in zip(self._block_tables, scheduled.new_blocks, strict=True):
            table[held.row, held.num_blocks : end] = blocks
        held.num_blocks = end

    def _slots(self, table: npt.NDArray[np.int32], rows: Ints, positions: Ints) -> Ints:
        size = self._kv.spec.block_size
        return table[rows, positions // size].astype(np.int64) * size + positions % size

    def _to_device(self, values: npt.NDArray[np.int32] | Ints) -> Tensor:
        return torch.from_numpy(values).to(self._device, non_blocking=True)
