"""Whom the scheduler serves, in which order, and what it does when blocks run out."""

import itertools

from rose.engine.decoders.plain import PlainDecoder
from rose.engine.kv_cache.manager import KVCacheManager
from rose.engine.kv_cache.spec import KVCacheSpec, KVGroup
from rose.engine.messages import RequestOutput
from rose.engine.request import Request
from rose.engine.sampling_params import SamplingParams
from rose.engine.scheduler import Scheduler
from rose.engine.scheduler_output import SampledTokens, SchedulerOutput

FULL, WINDOW = KVGroup(None, (0,)), KVGroup(8, (1,))
keys = itertools.count()


def make_scheduler(
    *groups: KVGroup, num_blocks: int = 100, max_num_seqs: int = 4, max_num_batched_tokens: int = 16
) -> Scheduler:
    spec = KVCacheSpec(groups or (FULL,), block_size=4, num_kv_heads=1, head_dim=1)
    kv_cache = KVCacheManager(spec, num_blocks)
    return Scheduler(kv_cache, PlainDecoder(), max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)


def add(scheduler: Scheduler, name: str, num_tokens: int, max_tokens: int = 50) -> Request:
    request = Request(
        key=next(keys),
        request_id=name,
        index=0,
        params=SamplingParams(),
        seed=0,
        token_ids=[ord(name[0])] * num_tokens,
        num_prompt_tokens=num_tokens,
        max_tokens_total=num_tokens + max_tokens,
        stop_ids=(),
    )
    scheduler.add([request])
    return request


def step(scheduler: Scheduler) -> tuple[SchedulerOutput, list[RequestOutput]]:
    """Schedule, and sample token 1 for each request whose tokens are all computed."""
    output = scheduler.schedule()
    scheduler.check_integrity()
    known = {request.key: request.num_tokens for request in scheduler.unfinished()}
    sampled = {
        one.key: SampledTokens(key=one.key, token_ids=[1])
        for one in output.scheduled
        if one.num_computed_tokens + one.num_tokens == known[one.key]
    }
    outputs = scheduler.update(output, sampled)
    scheduler.check_integrity()
    return output, scheduler.take_outputs() + outputs


def tokens_of(output: SchedulerOutput) -> dict[int, int]:
    return {one.key: one.num_tokens for one in output.scheduled}


def test_one_budget_for_prefill_and_decode() -> None:
    scheduler = make_scheduler()
    first, second = add(scheduler, "a", 10), add(scheduler, "b", 20)
    assert tokens_of(step(scheduler)[0]) == {first.key: 10, second.key: 6}
    assert tokens_of(step(scheduler)[0]) == {first.key: 1, second.key: 14}
    third = add(scheduler, "c", 3)
    assert tokens_of(step(scheduler)[0]) == {first.key: 1, second.key: 1, third.key: 3}


def test_a_request_is_new_once_and_then_a_diff() -> None:
    scheduler = make_scheduler(FULL, WINDOW)
    request = add(scheduler, "a", 6)
    output, _ = step(scheduler)
    [new] = output.new
    assert [len(table) for table in new.block_tables] == [2, 2]
    assert output.scheduled[0].new_blocks == ()
    seen = []
    for _ in range(4):
        output, _ = step(scheduler)
        assert output.new == []
        seen.append([len(blocks) for blocks in output.scheduled[0].new_blocks])
    assert seen == [[], [], [1, 1], []]
    assert [len(table) for table in scheduler.kv_cache.block_tables(request)] == [3, 3]


def test_places_are_limited() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    first, second, third = (add(scheduler, name, 3, max_tokens=2) for name in "abc")
    assert set(tokens_of(step(scheduler)[0])) == {first.key, second.key}
    assert scheduler.stats.num_waiting == 1
    step(scheduler)
    output, _ = step(scheduler)
    assert set(tokens_of(output)) == {third.key}
    assert set(output.dropped) == {first.key, second.key}


def test_the_newest_is_preempted_and_comes_back_first() -> None:
    scheduler = make_scheduler(num_blocks=6)  # 5 blocks of 4
    first, second = add(scheduler, "a", 8), add(scheduler, "b", 8)
    waiting = add(scheduler, "c", 2)
    step(scheduler)
    output, _ = step(scheduler)
    assert output.dropped == [second.key]  # both need a third block, and one is left
    assert set(tokens_of(output)) == {first.key}
    assert second.num_computed_tokens == 0
    assert scheduler.stats.num_preemptions == 1
    scheduler.finish(first, "abort")
    output, _ = step(scheduler)
    assert [new.key for new in output.new] == [second.key, waiting.key]
    assert output.new[0].token_ids == [ord("b")] * 8 + [1]


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    scheduler = make_scheduler(num_blocks=6)
    first, second = add(scheduler, "a", 8), add(scheduler, "b", 8)
    step(scheduler)
    step(scheduler)
    scheduler.finish(first, "abort")
    output, _ = step(scheduler)
    assert output.scheduled[0].key == second.key
    assert output.scheduled[0].num_computed_tokens == 8
    assert scheduler.stats.prefix_cache_hits == 0  # its own second visit is no hit


def test_one_request_alone_takes_smaller_chunks_rather_than_fail() -> None:
    scheduler = make_scheduler(FULL, WINDOW, num_blocks=14)  # 13: 9 full, 3 + 1 sliding
    add(scheduler, "a", 33, max_tokens=3)
    finals: list[RequestOutput] = []
    for _ in range(40):
        finals += [output for output in step(scheduler)[1] if output.finish_reason]
    assert [final.finish_reason for final in finals] == ["length"]
    assert scheduler.kv_cache.usage == 0


def test_a_request_that_can_never_fit_is_an_error() -> None:
    scheduler = make_scheduler(num_blocks=5)
    add(scheduler, "a", 16)
    [output] = scheduler.take_outputs()
    assert output.finish_reason == "error"
    assert output.error is not None
    assert "16" in output.error.message
    scheduler.check_integrity()


def test_a_request_that_outgrows_the_cache_is_an_error() -> None:
    scheduler = make_scheduler(num_blocks=5)
    add(scheduler, "a", 14)
    outputs = [output for _ in range(10) for output in step(scheduler)[1]]
    assert outputs[-1].finish_reason == "error"
    assert sum(len(output.token_ids) for output in outputs) == 3  # tokens 15, 16, and one that is never computed
    assert scheduler.kv_cache.usage == 0


def test_blocks_held_by_a_long_decode_are_bounded() -> None:
    scheduler = make_scheduler(WINDOW)
    add(scheduler, "a", 5, max_tokens=300)
    most = 0
    while scheduler.has_requests:
        step(scheduler)
        most = max(most, scheduler.kv_cache.capacity - scheduler.kv_cache.num_free_blocks)
    assert most <= 8 // 4 + 2


def test_a_drafting_decoder_gets_slots_and_rejected_drafts_are_rolled_back() -> None:
    class TwoDrafts:
        def num_draft_slots(self, request: Request) -> int:
            return 2 if request.has_computed_prompt else 0

    spec = KVCacheSpec((FULL,), block_size=4, num_kv_heads=1, head_dim=1)
    scheduler = Scheduler(KVCacheManager(spec, 50), TwoDrafts(), max_num_seqs=2, max_num_batched_tokens=16)
    request = add(scheduler, "a", 6)
    step(scheduler)
    assert (request.num_tokens, request.num_computed_tokens) == (7, 6)
    for accepted, known in ((0, 8), (2, 11), (1, 13)):
        output = scheduler.schedule()
        [one] = output.scheduled
        assert (one.num_tokens, one.num_draft_tokens) == (3, 2)
        scheduler.update(output, {request.key: SampledTokens(key=request.key, token_ids=[1] * (accepted + 1))})
        scheduler.check_integrity()
        assert (request.num_tokens, request.num_computed_tokens) == (known, known - 1)
