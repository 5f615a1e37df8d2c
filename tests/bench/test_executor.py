"""Reaching a context without computing it: what the worker is told in the end."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from rose.bench.executor import BenchExecutor
from rose.engine.core import EngineCore
from rose.engine.kv_cache.spec import KVCacheSpec
from rose.engine.messages import AddRequest, EngineReady
from rose.engine.sampling_params import SamplingParams
from rose.engine.scheduler_output import NewRequest, SampledTokens, SchedulerOutput
from rose.engine.worker.worker import Worker
from tests.fake_model import FULL, sliding

BLOCK_SIZE = 4


@dataclass
class SpyWorker:
    """Keeps the books that a worker keeps, strictly, and samples token 7."""

    kv_cache_spec: KVCacheSpec = field(default_factory=lambda: KVCacheSpec.from_layers([FULL, sliding(5)], BLOCK_SIZE))
    eos_token_ids: tuple[int, ...] = ()
    info: EngineReady = field(
        default_factory=lambda: EngineReady(
            max_model_len=100, vocab_size=50, block_size=BLOCK_SIZE, num_blocks=200, device="cpu", dtype="float32"
        )
    )
    held: dict[int, NewRequest] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    tables: dict[int, tuple[list[int], ...]] = field(default_factory=dict)

    def execute(self, output: SchedulerOutput, meanwhile: Callable[[], None]) -> list[SampledTokens]:
        meanwhile()
        for key in output.dropped:
            del self.held[key], self.tokens[key], self.tables[key]
        for new in output.new:
            assert new.key not in self.held
            self.held[new.key] = new
            self.tokens[new.key] = list(new.token_ids)
            self.tables[new.key] = tuple(list(table) for table in new.block_tables)
        sampled = []
        for scheduled in output.scheduled:
            for table, blocks in zip(self.tables[scheduled.key], scheduled.new_blocks or ([], []), strict=True):
                table.extend(blocks)
            end = scheduled.num_computed_tokens + scheduled.num_tokens
            assert all(len(table) * BLOCK_SIZE >= end for table in self.tables[scheduled.key])
            if end >= len(self.tokens[scheduled.key]):
                self.tokens[scheduled.key].append(7)
                sampled.append(SampledTokens(key=scheduled.key, token_ids=[7]))
        return sampled


@pytest.fixture
def worker():
    return SpyWorker()


@pytest.fixture
def executor(worker):
    return BenchExecutor(cast("Worker", cast("Any", worker)), random.Random(0))


def new_core(executor, budget=64):
    executor.forget_requests()
    return EngineCore(executor, max_num_seqs=4, max_num_batched_tokens=budget, enable_prefix_caching=False, seed=0)


def add(core, name, length):
    core.add(
        AddRequest(
            request_id=name,
            prompt_token_ids=[index % 50 for index in range(length)],
            sampling_params=SamplingParams(max_tokens=20, ignore_eos=True),
        )
    )


def test_the_worker_gets_the_requests_as_they_stand(worker, executor):
    core = new_core(executor, budget=16)
    add(core, "a", 30)
    add(core, "b", 9)
    executor.computes = False
    for _ in range(4):  # a takes two steps, then b comes
        core.step()
    assert worker.held == {}
    requests = {request.request_id: request for request in core.scheduler.unfinished()}
    lengths = {name: request.num_tokens for name, request in requests.items()}
    assert lengths["a"] > 31 > lengths["b"] > 9
    executor.computes = True
    core.step()
    for name, request in requests.items():
        assert worker.tokens[request.key][: lengths[name]] == request.token_ids[:-1].tolist()
        assert request.token_ids[-1] == 7
        assert worker.held[request.key].num_prompt_tokens == request.num_prompt_tokens
        full, window = core.scheduler.kv_cache.block_tables(request)
        theirs = worker.tables[request.key]
        assert theirs[0] == full
        live = [(ours, told) for ours, told in zip(window, theirs[1], strict=True) if ours != 0]
        assert live and all(ours == told for ours, told in live)
    core.scheduler.check_integrity()


def test_requests_that_end_while_nothing_is_computed_are_never_told(worker, executor):
    core = new_core(executor)
    executor.computes = False
    add(core, "a", 5)
    core.step()
    core.abort_all()
    add(core, "b", 5)
    core.step()
    executor.computes = True
    core.step()
    assert [new.num_prompt_tokens for new in worker.held.values()] == [5]


def test_another_core_starts_afresh(worker, executor):
    for _ in range(3):  # keys begin at 0 each time
        core = new_core(executor)
        executor.computes = False
        add(core, "a", 10)
        add(core, "b", 6)
        core.step()
        executor.computes = True
        core.step()
        core.step()
        assert sorted(worker.held) == [0, 1]
        assert [len(worker.tokens[key]) for key in (0, 1)] == [13, 9]


def test_computing_from_the_start_changes_nothing(worker, executor):
    core = new_core(executor)
    add(core, "a", 10)
    while core.has_work:
        core.step()
    assert worker.tokens[0] == [*range(10), *[7] * 20]
    assert executor.execute_s > 0
