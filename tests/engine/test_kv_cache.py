"""Blocks: who holds them, what is found again, and when they are free."""

import itertools
import random
from array import array

import pytest

from rose.engine.kv_cache.block_pool import BlockPool
from rose.engine.kv_cache.manager import KVCacheManager
from rose.engine.kv_cache.prefix_cache import PrefixCache, hash_block
from rose.engine.kv_cache.spec import KVCacheSpec, KVGroup
from rose.engine.request import Request
from rose.engine.sampling_params import SamplingParams
from rose.errors import UnsupportedModel
from rose.layers.forward_batch import AttentionSpec

FULL = KVGroup(None, (0,))
WINDOW = KVGroup(6, (1,))
keys = itertools.count()


def make_request(token_ids: list[int]) -> Request:
    return Request(
        key=next(keys),
        request_id="r",
        index=0,
        params=SamplingParams(),
        seed=0,
        token_ids=array("q", token_ids),
        num_prompt_tokens=len(token_ids),
        max_tokens_total=1000,
        stop_ids=(),
    )


def make_manager(*groups: KVGroup, num_blocks: int = 50, caching: bool = True) -> KVCacheManager:
    spec = KVCacheSpec(groups or (FULL, WINDOW), block_size=4, num_kv_heads=1, head_dim=2)
    return KVCacheManager(spec, num_blocks, enable_prefix_caching=caching)


def compute(manager: KVCacheManager, request: Request) -> int:
    """Admit and compute all known tokens in one step. Returns the tokens that were cached."""
    hit = manager.find_prefix(request)
    assert manager.admit(request, hit, request.num_tokens - hit.num_tokens)
    request.num_computed_tokens = request.num_tokens
    manager.commit(request)
    manager.check_integrity()
    return hit.num_tokens


def finish(manager: KVCacheManager, request: Request) -> None:
    manager.free(request)
    manager.check_integrity()


def test_groups_come_from_the_layers() -> None:
    full, window = AttentionSpec(2, 8, None), AttentionSpec(2, 8, 128)
    spec = KVCacheSpec.from_layers([window, full, window], block_size=16)
    assert spec.groups == (KVGroup(None, (1,)), KVGroup(128, (0, 2)))
    assert spec.num_tensors == 2
    assert spec.block_bytes(2) == 2 * 2 * 16 * 2 * 8 * 2
    assert len(KVCacheSpec.from_layers([full, full], block_size=16).groups) == 1
    with pytest.raises(UnsupportedModel, match="num_kv_heads"):
        KVCacheSpec.from_layers([full, AttentionSpec(4, 8, None)], block_size=16)


def test_a_window_counts_the_current_token() -> None:
    assert [WINDOW.first_visible(position) for position in (0, 5, 6, 20)] == [0, 0, 1, 15]
    assert FULL.first_visible(20) == 0


@pytest.mark.parametrize("window", [1, 2, 4, 5, 6, 9])
@pytest.mark.parametrize("block_size", [1, 4])
def test_min_blocks_is_the_widest_a_window_gets(window: int, block_size: int) -> None:
    spec = KVCacheSpec((KVGroup(window, (0,)),), block_size, 1, 1)
    for num_tokens in range(1, 40):
        widest = max(
            position // block_size - max(0, position - window + 1) // block_size + 1 for position in range(num_tokens)
        )
        assert widest <= spec.min_blocks(num_tokens) <= widest + 1


def test_max_tokens_inverts_min_blocks() -> None:
    for groups in ((FULL,), (FULL, WINDOW), (FULL, WINDOW, KVGroup(20, (2,)))):
        spec = KVCacheSpec(groups, 4, 1, 1)
        for num_blocks in range(40):
            longest = spec.max_tokens(num_blocks)
            assert spec.min_blocks(longest) <= num_blocks < spec.min_blocks(longest + 1)
    only_window = KVCacheSpec((WINDOW,), 4, 1, 1)
    assert only_window.max_tokens(20) > 1 << 40
    assert only_window.max_tokens(1) == 4


def test_hashes_depend_on_all_tokens_before() -> None:
    first = hash_block(b"", [1, 2])
    assert first == hash_block(b"", (1, 2))
    assert len({first, hash_block(b"", [2, 1]), hash_block(first, [1, 2]), hash_block(b"", [1, 2, 0])}) == 4


def test_unused_blocks_are_given_out_before_cached_ones_and_those_oldest_first() -> None:
    cache = PrefixCache()
    pool = BlockPool(6, cache)
    first, second, third = pool.allocate(3)
    cache.add(0, b"second", second)
    cache.add(0, b"first", first)
    pool.release([second])
    pool.release([first, third])
    assert pool.num_free == 5
    blank = pool.allocate(3)
    assert not {first, second} & set(blank)
    assert pool.allocate(1) == [second]
    assert cache.find(0, b"second") is None
    assert cache.find(0, b"first") == first


def test_the_null_block_is_never_given_out() -> None:
    pool = BlockPool(4, PrefixCache())
    assert sorted(pool.allocate(3)) == [1, 2, 3]
    pool.release([0, 0, 1])
    assert pool.num_free == 1


def test_a_shared_block_is_free_when_the_last_holder_lets_go() -> None:
    cache = PrefixCache()
    pool = BlockPool(3, cache)
    [block] = pool.allocate(1)
    cache.add(0, b"x", block)
    pool.share(block)
    pool.release([block])
    assert not pool.is_free(block)
    pool.release([block])
    assert pool.is_free(block)
    pool.share(block)
    assert not pool.is_free(block)
    pool.check_integrity([block])


def test_a_second_block_with_the_same_tokens_stays_unknown() -> None:
    cache = PrefixCache()
    cache.add(0, b"x", 1)
    cache.add(0, b"x", 2)
    assert cache.find(0, b"x") == 1
    assert 2 not in cache
    cache.forget(2)
    cache.forget(1)
    assert len(cache) == 0
    cache.check_integrity()


def test_at_least_one_token_is_computed_again() -> None:
    manager = make_manager()
    finished = make_request(list(range(12)))
    assert compute(manager, finished) == 0
    finish(manager, finished)
    for length, cached in ((12, 8), (13, 12), (5, 4), (4, 0)):
        again = make_request(list(range(max(length, 12)))[:length] + [99] * (length - 12))
        assert compute(manager, again) == cached, length
        finish(manager, again)


def test_prefixes_end_where_the_tokens_differ() -> None:
    manager = make_manager()
    compute(manager, make_request(list(range(20))))
    other = make_request([*range(9), 77, *range(10, 20)])
    assert compute(manager, other) == 8
    assert manager.block_tables(other)[0][:2] != [0, 0]


def test_a_hit_needs_only_the_last_window_of_a_sliding_group() -> None:
    manager = make_manager(num_blocks=21)
    first = make_request(list(range(32)))
    compute(manager, first)
    finish(manager, first)
    # Eat unused blocks, and then the cached ones that left the window first.
    eater = make_request(list(range(100, 120)))
    compute(manager, eater)
    again = make_request(list(range(33)))
    hit = manager.find_prefix(again)
    assert hit.num_tokens == 32
    full, window = hit.tables
    assert 0 not in full
    assert [block == 0 for block in window] == [True] * 6 + [False] * 2  # 32 - 6 + 1 = 27 is in block 6


def test_a_hole_in_the_window_moves_the_hit_before_it() -> None:
    manager = make_manager(num_blocks=100)
    first = make_request(list(range(40)))
    compute(manager, first)
    manager._cache.forget(manager.block_tables(first)[1][9])  # the last block of the sliding group
    finish(manager, first)
    assert manager.find_prefix(make_request(list(range(41)))).num_tokens == 36


def test_blocks_that_leave_the_window_are_free_at_once() -> None:
    manager = make_manager()
    request = make_request(list(range(30)))
    compute(manager, request)
    for _ in range(60):
        blocks = manager.extend(request, 1)
        assert blocks is not None
        request.token_ids.append(7)
        request.num_computed_tokens += 1
        manager.commit(request)
        manager.check_integrity()
        full, window = manager.block_tables(request)
        assert len(full) == len(window) == -(-request.num_computed_tokens // 4)
        assert sum(block != 0 for block in window) <= 3
        assert manager.capacity - manager.num_free_blocks == len(full) + sum(block != 0 for block in window)


@pytest.mark.parametrize("window", [1, 4, 5, 6, 9])
@pytest.mark.parametrize("caching", [True, False])
def test_steps_of_any_size_leave_what_the_definition_says(window: int, caching: bool) -> None:
    rng = random.Random(window)
    manager = make_manager(FULL, KVGroup(window, (1,)), num_blocks=400, caching=caching)
    request = make_request([rng.randrange(1000) for _ in range(200)])
    assert manager.admit(request, manager.find_prefix(request), 1)
    request.num_computed_tokens = 1
    manager.commit(request)
    while request.num_computed_tokens < 200:
        count = min(rng.choice((1, 1, 1, 2, 7)), 200 - request.num_computed_tokens)
        assert manager.extend(request, count) is not None
        request.num_computed_tokens += count
        manager.commit(request)
        manager.check_integrity()
        computed = request.num_computed_tokens
        full, sliding = manager.block_tables(request)
        visible = max(0, computed - window + 1) // 4
        assert len(full) == len(sliding) == -(-computed // 4)
        assert [block == 0 for block in sliding] == [i < visible for i in range(len(sliding))]
        assert [block in manager._cache for block in full] == [caching and i < computed // 4 for i in range(len(full))]


def test_a_prompt_that_nobody_shares_is_named_only_as_far_as_the_first_miss() -> None:
    manager = make_manager()
    compute(manager, make_request(list(range(12))))
    request = make_request([*range(8), *range(100, 120)])
    assert manager.find_prefix(request).num_tokens == 8
    assert len(request.block_hashes) == 3


def test_a_search_is_repeated_only_when_something_else_might_be_found() -> None:
    manager = make_manager()
    request = make_request(list(range(13)))
    nothing = manager.find_prefix(request)
    assert manager.find_prefix(request) is nothing
    first = make_request(list(range(9)))
    compute(manager, first)
    found = manager.find_prefix(request)
    assert found.num_tokens == 8
    assert manager.find_prefix(request) is found
    assert manager.find_prefix(make_request([5, 6, 7, 8, 9])).num_tokens == 0
    finish(manager, first)
    eater = make_request([77] * 92)  # 46 of the 49 blocks: those that the hit named are given out again
    assert manager.admit(eater, manager.find_prefix(eater), 92)
    assert manager.find_prefix(request).num_tokens == 0


def test_a_search_is_repeated_when_one_that_runs_takes_what_was_found() -> None:
    manager = make_manager()
    first = make_request(list(range(9)))
    compute(manager, first)
    finish(manager, first)
    eater = make_request([77] * 92)
    assert manager.admit(eater, manager.find_prefix(eater), 4)
    eater.num_computed_tokens = 4
    request = make_request(list(range(13)))
    assert manager.find_prefix(request).num_tokens == 8
    assert manager.extend(eater, 88) is not None
    assert manager.find_prefix(request).num_tokens == 0


def test_a_search_is_repeated_when_its_tables_were_taken() -> None:
    manager = make_manager()
    compute(manager, make_request(list(range(9))))
    request = make_request(list(range(10)))
    hit = manager.find_prefix(request)
    assert manager.admit(request, hit, 2)
    manager.free(request)  # preempted before anything was computed
    again = manager.find_prefix(request)
    assert again.num_tokens == 8
    assert [len(table) for table in again.tables] == [2, 2]


def test_names_worked_out_early_are_those_of_commit() -> None:
    early, late = make_manager(), make_manager()
    requests = [make_request(list(range(30))) for _ in range(2)]
    early.name_blocks(requests[0], 30)
    assert len(requests[0].block_hashes) == 7
    compute(early, requests[0])
    compute(late, requests[1])
    assert requests[0].block_hashes == requests[1].block_hashes
    without = make_manager(caching=False)
    unnamed = make_request(list(range(30)))
    without.name_blocks(unnamed, 30)
    assert unnamed.block_hashes == []


def test_a_failed_admission_or_extension_takes_nothing() -> None:
    manager = make_manager(num_blocks=9)
    request = make_request(list(range(12)))
    assert not manager.admit(request, manager.find_prefix(request), 20)
    assert manager.num_free_blocks == 8
    assert manager.admit(request, manager.find_prefix(request), 12)
    request.num_computed_tokens = 12
    free = manager.num_free_blocks
    assert manager.extend(request, 12) is None
    assert manager.num_free_blocks == free
    assert manager.room(request) == 4
    assert manager.extend(request, 4) is not None
    manager.check_integrity()


def test_cached_free_blocks_do_not_count_twice_for_a_hit() -> None:
    manager = make_manager(FULL, num_blocks=5)
    first = make_request(list(range(16)))
    compute(manager, first)
    finish(manager, first)
    again = make_request([*range(12), 50, 51, 52, 53, 54])
    hit = manager.find_prefix(again)
    assert hit.num_tokens == 12
    assert not manager.admit(again, hit, 5)  # 3 blocks of the hit and 2 more, of 4
    assert manager.room(again, hit) == 4
    assert manager.admit(again, hit, 4)
    manager.check_integrity()


def test_bad_blocks_are_forgotten() -> None:
    manager = make_manager()
    request = make_request(list(range(12)))
    compute(manager, request)
    manager.free(request, forget=True)
    manager.check_integrity()
    assert manager.find_prefix(make_request(list(range(12)))).num_tokens == 0


def test_without_prefix_caching_nothing_is_found() -> None:
    manager = make_manager(caching=False)
    request = make_request(list(range(12)))
    compute(manager, request)
    finish(manager, request)
    assert manager.find_prefix(make_request(list(range(12)))).num_tokens == 0
    assert request.block_hashes == []


def test_freeing_twice_is_harmless() -> None:
    manager = make_manager()
    request = make_request([1, 2, 3])
    compute(manager, request)
    finish(manager, request)
    finish(manager, request)
    assert manager.usage == 0.0
