"""The workers' copy of each running request, and the `ForwardBatch` of one step made from it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from rose.engine.kv_cache.block_pool import NULL_BLOCK
from rose.engine.scheduler_output import NewRequest, ScheduledRequest, SchedulerOutput
from rose.engine.worker.batch_shape import BatchShape
from rose.engine.worker.input_buffers import HostInputs, InputBuffers, Int64s, StepInputs
from rose.engine.worker.kv_tensors import KVTensors
from rose.engine.worker.sampler import SamplingRow, is_plain, temperature_of, uniform

_LONG_RUN = 512  # tokens of one request from which copying them on their own is cheaper than gathering them with others


@dataclass(slots=True)
class _Held:
    request: NewRequest
    row: int
    num_tokens: int
    num_blocks: int
    temperature: float  # as `sample_tokens` takes it
    uniform: float  # of the next token
    is_plain: bool


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Rows of a batch that foretell tokens of a prompt: row first_row + i the token targets[i], an int64 array.

    num_top: how many of the best to tell besides.
    """

    key: int
    first_row: int
    targets: npt.NDArray[np.int64]
    num_top: int


class InputBatch:
    """Token ids and block tables of up to `max_num_seqs` requests, one row each, on the host.

    A step may be larger than its requests. The rest of it is padding: tokens of requests that nobody made, which see
    themselves alone and live in the null block.
    """

    def __init__(
        self,
        kv: KVTensors,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        device: torch.device,
    ) -> None:
        """max_num_batched_tokens: of a step, its padding included, for which there is one request more."""
        spec = kv.spec
        self._block_size = spec.block_size
        self._offsets = np.arange(spec.block_size)
        self._token_ids = np.zeros((max_num_seqs, max_model_len), dtype=np.int64)
        self._block_tables = [
            np.zeros((max_num_seqs, spec.blocks_for(max_model_len)), dtype=np.int32) for _ in spec.groups
        ]
        self._held: dict[int, _Held] = {}
        self._telling: set[int] = set()  # keys of requests that are to tell of their prompts
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self.buffers = InputBuffers(
            kv,
            max_num_tokens=max_num_batched_tokens,
            max_num_requests=max_num_seqs + 1,
            max_num_blocks=spec.blocks_for(max_model_len),
            device=device,
        )

    def apply(self, output: SchedulerOutput) -> None:
        """Bring the copy up to date with the scheduler."""
        for key in output.dropped:
            self._free_rows.append(self._held.pop(key).row)
            self._telling.discard(key)
        for new in output.new:
            self._add(new)
        for scheduled in output.scheduled:
            if any(scheduled.new_blocks):
                self._append_blocks(scheduled)

    def shape(self, scheduled: Sequence[ScheduledRequest]) -> BatchShape:
        """A step's own shape, without padding."""
        counts = [s.num_tokens for s in scheduled]
        longest = max(s.num_computed_tokens + s.num_tokens for s in scheduled)
        return BatchShape(sum(counts), len(counts), max(counts), longest)

    def sampling_keys(self, scheduled: Sequence[ScheduledRequest]) -> list[int]:
        """Keys of the requests that reach the end of their tokens, in the order of `scheduled`."""
        return [s.key for s in scheduled if self._samples(s)]

    def prompt_rows(self, scheduled: Sequence[ScheduledRequest]) -> list[PromptRows]:
        """Of which rows of the batch the prompts' log-probabilities are to be told."""
        found: list[PromptRows] = []
        if not self._telling:
            return found
        first = 0
        for s in scheduled:
            held = self._held[s.key]
            last = min(s.num_computed_tokens + s.num_tokens, held.request.num_prompt_tokens - 1)
            if held.request.prompt_logprobs is not None and last > s.num_computed_tokens:
                targets = self._token_ids[held.row, s.num_computed_tokens + 1 : last + 1].copy()
                found.append(PromptRows(s.key, first, targets, held.request.prompt_logprobs))
            first += s.num_tokens
        return found

    def fill(self, inputs: StepInputs, scheduled: Sequence[ScheduledRequest]) -> None:
        """Write a step's inputs and send them to the device. The order of its requests is that of `scheduled`.

        What does not fill the shape of `inputs` is padded. The first sampling rows are those of `sampling_keys`.
        """
        self.buffers.wait()
        num_tokens, num_requests = self._fill_requests(inputs.host, scheduled)
        self._fill_padding(inputs.host, num_tokens, num_requests, is_decode=inputs.batch.max_query_len == 1)
        self.buffers.send(inputs)

    def _fill_requests(self, host: HostInputs, scheduled: Sequence[ScheduledRequest]) -> tuple[int, int]:
        """The numbers of tokens and requests that were written."""
        num_requests = len(scheduled)
        rows = np.array([self._held[s.key].row for s in scheduled], dtype=np.int64)
        starts = np.array([s.num_computed_tokens for s in scheduled], dtype=np.int64)
        counts = np.array([s.num_tokens for s in scheduled], dtype=np.int64)
        ends = starts + counts
        cu_seqlens = host.cu_seqlens_q[: num_requests + 1]
        cu_seqlens[0] = 0
        np.cumsum(counts, out=cu_seqlens[1:])
        num_tokens = int(cu_seqlens[-1])
        host.seq_lens[:num_requests] = ends
        firsts = cu_seqlens[:-1].astype(np.int64)
        if num_tokens == num_requests:  # one each
            self._gather(host, rows, starts, firsts)
        else:
            is_long = counts >= _LONG_RUN
            for run in zip(*(values[is_long].tolist() for values in (rows, starts, counts, firsts)), strict=True):
                self._copy_run(host, *run)
            if not is_long.all():
                rest = rows[~is_long], starts[~is_long], firsts[~is_long]
                self._gather(host, *_each_token(counts[~is_long], *rest))
        num_blocks = -(-int(ends.max(initial=0)) // self._block_size)
        for table, block_table in zip(self._block_tables, host.block_tables, strict=True):
            block_table[:num_requests, :num_blocks] = table[rows, :num_blocks]
        self._fill_sampling(host, scheduled, cu_seqlens[1:].tolist())
        return num_tokens, num_requests

    def _gather(self, host: HostInputs, rows: Int64s, positions: Int64s, places: Int64s) -> None:
        """Write single tokens, each [num_tokens]: of which row, where in it, and where in the batch."""
        host.positions[places] = positions
        host.token_ids[places] = self._token_ids[rows, positions]
        blocks, offsets = np.divmod(positions, self._block_size)
        for table, slots in zip(self._block_tables, host.slot_mappings, strict=True):
            slots[places] = table[rows, blocks].astype(np.int64) * self._block_size + offsets

    def _copy_run(self, host: HostInputs, row: int, start: int, count: int, place: int) -> None:
        """Write consecutive tokens of one request, whose slots are consecutive within a block."""
        size, end = self._block_size, start + count
        to = slice(place, place + count)
        host.positions[to] = np.arange(start, end)
        host.token_ids[to] = self._token_ids[row, start:end]
        first, last = start // size, -(-end // size)
        for table, slots in zip(self._block_tables, host.slot_mappings, strict=True):
            of_blocks = table[row, first:last].astype(np.int64)[:, None] * size + self._offsets  # [num_blocks, size]
            slots[to] = of_blocks.reshape(-1)[start - first * size : end - first * size]

    def _fill_sampling(self, host: HostInputs, scheduled: Sequence[ScheduledRequest], ends: list[int]) -> None:
        """ends: of each request's rows in the batch. What is left over repeats the first row, and draws nothing."""
        samples = [(end - 1, self._held[s.key]) for s, end in zip(scheduled, ends, strict=True) if self._samples(s)]
        count = len(samples)
        host.sampling_rows[:count] = [row for row, _ in samples]
        host.temperatures[:count] = [held.temperature for _, held in samples]
        host.uniforms[:count] = [held.uniform for _, held in samples]
        for values in (host.sampling_rows, host.temperatures, host.uniforms):
            values[count:] = 0

    def _fill_padding(self, host: HostInputs, num_tokens: int, num_requests: int, *, is_decode: bool) -> None:
        """Padding of decode steps is requests of one token each, of others one request with all of it."""
        missing = len(host.token_ids) - num_tokens
        if not missing and len(host.seq_lens) == num_requests:
            return
        host.token_ids[num_tokens:] = 0
        host.positions[num_tokens:] = np.zeros(missing) if is_decode else np.arange(missing)
        lengths = np.zeros(len(host.seq_lens) - num_requests, dtype=np.int32)
        if is_decode:
            lengths[:] = 1
        elif missing:
            lengths[0] = missing
        host.seq_lens[num_requests:] = lengths
        host.cu_seqlens_q[num_requests + 1 :] = num_tokens + np.cumsum(lengths)
        for slots, block_table in zip(host.slot_mappings, host.block_tables, strict=True):
            slots[num_tokens:] = NULL_BLOCK * self._block_size + np.arange(missing) % self._block_size
            block_table[num_requests:] = NULL_BLOCK

    def _samples(self, scheduled: ScheduledRequest) -> bool:
        return self._held[scheduled.key].num_tokens <= scheduled.num_computed_tokens + scheduled.num_tokens

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

    def all_plain(self, keys: Sequence[int]) -> bool:
        """Whether the step's own inputs say all that these requests' tokens depend on."""
        return all(self._held[key].is_plain for key in keys)

    def draw_ahead(self, keys: Sequence[int]) -> None:
        """Draw for the tokens after those that a step samples; these have been sent what they need."""
        for key in keys:
            held = self._held[key]
            if held.temperature:
                held.uniform = uniform(held.request.seed, held.num_tokens + 1 - held.request.num_prompt_tokens)

    def append_token(self, key: int, token_id: int) -> None:
        """The request's next token was sampled."""
        held = self._held[key]
        if held.num_tokens < self._token_ids.shape[1]:  # the very last one is never computed
            self._token_ids[held.row, held.num_tokens] = token_id
        held.num_tokens += 1

    def _add(self, new: NewRequest) -> None:
        row, temperature = self._free_rows.pop(), temperature_of(new.params)
        if new.prompt_logprobs is not None:
            self._telling.add(new.key)
        self._token_ids[row, : len(new.token_ids)] = new.token_ids
        for table, blocks in zip(self._block_tables, new.block_tables, strict=True):
            table[row, : len(blocks)] = blocks
        self._held[new.key] = _Held(
            request=new,
            row=row,
            num_tokens=len(new.token_ids),
            num_blocks=len(new.block_tables[0]),
            temperature=temperature,
            uniform=uniform(new.seed, len(new.token_ids) - new.num_prompt_tokens) if temperature else 0.0,
            is_plain=is_plain(new.params),
        )

    def _append_blocks(self, scheduled: ScheduledRequest) -> None:
        held = self._held[scheduled.key]
        end = held.num_blocks + len(scheduled.new_blocks[0])
        for table, blocks in zip(self._block_tables, scheduled.new_blocks, strict=True):
            table[held.row, held.num_blocks : end] = blocks
        held.num_blocks = end


def _each_token(counts: Int64s, rows: Int64s, starts: Int64s, firsts: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Rows, positions and places of all tokens of requests that have `counts`, from `starts` and `firsts` on."""
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(rows, counts), np.repeat(starts, counts) + within, np.repeat(firsts, counts) + within
