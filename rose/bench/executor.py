"""Between the engine's core and the worker: a clock, and a way to reach a long context without computing it.

The scheduler, the block tables and the requests' state are the engine's own in both modes. With `computes` false, steps
are answered with random tokens and the worker is left alone; with the next step that is computed the worker gets the
requests as they then stand, as it would after a preemption. Their blocks hold what was there before, or random numbers
after `fill_blocks`. A decode step reads and computes as much as after a real prefill, whatever the numbers are.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from rose.engine.kv_cache.block_pool import NULL_BLOCK
from rose.engine.kv_cache.spec import KVCacheSpec
from rose.engine.messages import EngineReady
from rose.engine.scheduler_output import NewRequest, SampledTokens, ScheduledRequest, SchedulerOutput
from rose.engine.worker.worker import Worker

_FILL_BLOCKS = 4096  # filled at a time, so that the numbers need little memory on their way


@dataclass(slots=True)
class _Pending:
    """A request that the worker has not been told about."""

    first: NewRequest
    token_ids: list[int]
    block_tables: tuple[list[int], ...]

    def as_new(self) -> NewRequest:
        """The request as it stands."""
        return NewRequest(
            key=self.first.key,
            token_ids=self.token_ids,
            num_prompt_tokens=self.first.num_prompt_tokens,
            params=self.first.params,
            seed=self.first.seed,
            stop_ids=self.first.stop_ids,
            block_tables=self.block_tables,
        )


class BenchExecutor:
    """The `Executor` of a benchmark. execute_s: time spent in the worker so far; scheduled: the last step's work."""

    def __init__(self, worker: Worker, rng: random.Random) -> None:
        self.computes = True
        self.execute_s = 0.0
        self.scheduled: Sequence[ScheduledRequest] = ()
        self._worker = worker
        self._random = rng
        self._held: set[int] = set()  # keys that the worker knows
        self._stale: list[int] = []  # keys that it must forget
        self._pending: dict[int, _Pending] = {}

    @property
    def kv_cache_spec(self) -> KVCacheSpec:
        """The worker's."""
        return self._worker.kv_cache_spec

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The worker's."""
        return self._worker.eos_token_ids

    @property
    def info(self) -> EngineReady:
        """The worker's."""
        return self._worker.info

    @property
    def pending_blocks(self) -> list[int]:
        """Blocks of the requests that the worker has not been told about."""
        tables = (table for pending in self._pending.values() for table in pending.block_tables)
        return sorted({block for table in tables for block in table if block != NULL_BLOCK})

    def forget_requests(self) -> None:
        """Make ready for another core, which will number its requests from the start again."""
        self._stale += sorted(self._held)
        self._held.clear()
        self._pending.clear()

    def execute(self, output: SchedulerOutput, meanwhile: Callable[[], None]) -> list[SampledTokens]:
        """Compute a step, or pretend to; see `Executor`."""
        self.scheduled = output.scheduled
        return self._compute(output, meanwhile) if self.computes else self._pretend(output)

    def _compute(self, output: SchedulerOutput, meanwhile: Callable[[], None]) -> list[SampledTokens]:
        dropped = [*self._stale, *self._drop(output.dropped)]
        new = [*(pending.as_new() for pending in self._pending.values()), *output.new]
        self._stale, self._pending = [], {}
        self._held.update(request.key for request in new)
        begin = time.perf_counter()
        sampled = self._worker.execute(SchedulerOutput(dropped=dropped, new=new, scheduled=output.scheduled), meanwhile)
        self.execute_s += time.perf_counter() - begin
        return sampled

    def _pretend(self, output: SchedulerOutput) -> list[SampledTokens]:
        self._stale += self._drop(output.dropped)
        for new in output.new:
            tables = tuple(list(table) for table in new.block_tables)
            self._pending[new.key] = _Pending(new, list(new.token_ids), tables)
        return [sampled for scheduled in output.scheduled for sampled in self._answer(scheduled)]

    def _answer(self, scheduled: ScheduledRequest) -> list[SampledTokens]:
        pending = self._pending[scheduled.key]
        if any(scheduled.new_blocks):
            for table, blocks in zip(pending.block_tables, scheduled.new_blocks, strict=True):
                table.extend(blocks)
        if scheduled.num_computed_tokens + scheduled.num_tokens < len(pending.token_ids):
            return []
        token_id = self._random.randrange(self.info.vocab_size)
        pending.token_ids.append(token_id)
        return [SampledTokens(key=scheduled.key, token_ids=[token_id])]

    def _drop(self, keys: Sequence[int]) -> list[int]:
        """Forget requests; returns the keys that the worker must forget too."""
        for key in keys:
            self._pending.pop(key, None)
        known = [key for key in keys if key in self._held]
        self._held.difference_update(known)
        return known


def fill_blocks(worker: Worker, blocks: Sequence[int], seed: int) -> None:
    """Put standard normal numbers into blocks of the KV cache: about what normalized keys and values look like."""
    device = worker.model.device
    generator = torch.Generator(device).manual_seed(seed)
    for start in range(0, len(blocks), _FILL_BLOCKS):
        index = torch.tensor(blocks[start : start + _FILL_BLOCKS], device=device)
        for tensor in worker.kv_tensors.tensors:
            shape = (tensor.shape[0], len(index), *tensor.shape[2:])
            tensor[:, index] = torch.randn(shape, generator=generator, device=device, dtype=tensor.dtype)
