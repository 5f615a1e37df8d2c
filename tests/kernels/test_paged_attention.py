import math

import pytest
import torch

from rose.errors import UnsupportedShape
from rose.kernels.paged_attention import reference
from rose.kernels.paged_attention.launch import AttentionShape, heads_together
from tests.kernels.attention_cases import CASES, Case, make_inputs, oracle


def assert_matches(inputs, *, max_error=2e-6):
    out = inputs.run()
    assert out.shape == inputs.query.shape
    assert out.dtype == inputs.query.dtype
    error = (out.double() - oracle(inputs)).abs()
    if error.numel():
        worst = torch.nonzero(error == error.max())[0].tolist()
        assert error.max() <= max_error, f"error {error.max():.3g} at [token, head, dim] {worst}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.why)
def test_cases(case):
    assert_matches(make_inputs(case))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.why)
def test_cases_in_small_chunks(case, monkeypatch):
    monkeypatch.setattr(reference, "_MAX_SCORES", 6 * 7)
    monkeypatch.setattr(reference, "_MIN_WINDOW_CHUNK", 3)
    monkeypatch.setattr(reference, "_MAX_GATHERED", 16 * 50)
    assert_matches(make_inputs(case, seed=1))


def test_bfloat16_is_rounded_once():
    inputs = make_inputs(CASES[6], dtype=torch.bfloat16)
    expected = oracle(inputs)
    assert ((inputs.run().double() - expected).abs() <= expected.abs() * 2**-8 + 1e-6).all()


def test_kv_heads_are_in_groups_not_strided():
    inputs = make_inputs(Case("heads", ((3, 3),), num_q_heads=4, num_kv_heads=2))
    for cache in (inputs.value_cache,):
        cache[..., 0, :], cache[..., 1, :] = 1.0, 2.0
    inputs.sinks.fill_(-math.inf)
    assert torch.allclose(inputs.run()[..., 0], torch.tensor([1.0, 1.0, 2.0, 2.0]).expand(3, 4))


def test_sink_is_in_the_denominator_only():
    inputs = make_inputs(Case("sink", ((1, 1), (2, 2)), num_q_heads=2, num_kv_heads=1))
    inputs.query.zero_()  # every score is 0
    inputs.sinks.copy_(torch.tensor([0.0, math.log(3.0)]))
    value = inputs.values[0][0, 0]
    assert torch.allclose(inputs.run()[0], torch.stack([value / 2, value / 4]))


def test_sink_is_counted_once_however_the_queries_are_cut(monkeypatch):
    inputs = make_inputs(Case("sink", ((40, 60),)))
    inputs.sinks.fill_(3.0)
    whole = inputs.run()
    monkeypatch.setattr(reference, "_MAX_SCORES", 1)
    assert torch.allclose(inputs.run(), whole, atol=1e-6)


def test_running_maximum_starts_at_the_sink():
    inputs = make_inputs(Case("sink", ((2, 5), (1, 4))))
    inputs.sinks.fill_(500.0)  # exp of it, or of a score less it without that start, is out of range
    assert torch.equal(inputs.run(), torch.zeros_like(inputs.query))
    inputs.sinks.fill_(-500.0)
    assert_matches(inputs)


def test_window_counts_the_current_token():
    inputs = make_inputs(Case("window", ((1, 6), (4, 6)), sliding_window=1))
    inputs.sinks.fill_(-math.inf)
    out = inputs.run()
    last = inputs.values[0][5].repeat_interleave(3, dim=0)
    assert torch.allclose(out[0], last)


def test_scores_stay_within_their_bound(monkeypatch):
    """An 8192-token prompt with 8 heads has 537 million scores; no more than 2 million may exist at a time."""
    sizes = []

    def record(query, key, value, sinks, scale, hidden):
        sizes.append(query.shape[1] * query.shape[2] * key.shape[1])
        return query

    monkeypatch.setattr(reference, "_attend", record)
    for window in (None, 128):
        cache = torch.zeros(512, 16, 1, 2)
        reference.paged_attention_reference(
            torch.zeros(8192, 8, 2), cache, cache, torch.arange(512).int()[None], query_lens=(8192,), kv_lens=(8192,),
            sinks=torch.zeros(8), scale=1.0, sliding_window=window,
        )  # fmt: skip
    assert max(sizes) <= reference._MAX_SCORES


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sinks": torch.zeros(5)}, r"sinks must have shape \[6\], got \[5\]"),
        ({"sinks": torch.zeros(6).bfloat16()}, "sinks must be torch.float32"),
        ({"query": torch.zeros(7, 5, 8)}, "5 query heads do not divide over 2 kv heads"),
        ({"query": torch.zeros(6, 6, 8)}, "do not add up to 6 tokens"),
        ({"query": torch.zeros(7, 6, 9)}, "key_cache"),
        ({"seq_lens": torch.tensor([3, 3]).int()}, "6 queries with 3 positions"),
        ({"max_kv_len": 99}, "99 positions in a block table for"),
        ({"max_kv_len": 5}, "6 queries with 5 positions"),
        ({"max_kv_len": 8}, "6 queries with 9 positions, where at most 6 with 8 were announced"),
        ({"max_query_len": 2}, "6 queries with 9 positions, where at most 2 with 9 were announced"),
        ({"max_query_len": 1}, "7 tokens are not one for each of 2 requests"),
        ({"seq_lens": torch.tensor([9]).int()}, r"seq_lens must have shape \[2\], got \[1\]"),
        ({"sliding_window": 0}, "sliding_window must be positive, got 0"),
        ({"block_table": torch.zeros(2, 9, dtype=torch.int64)}, "block_table must be torch.int32"),
        ({"key_cache": torch.zeros(10, 4, 2, 8).bfloat16()}, "key_cache must be torch.float32"),
        ({"key_cache": torch.zeros(10, 2, 4, 8).transpose(1, 2)}, "key_cache must be contiguous"),
        (
            {"query": torch.zeros(6, 7, 8).transpose(0, 1)},
            r"heads of query must be neighbours, got strides \(8, 56, 1\)",
        ),
        ({"block_table": torch.zeros(9, 2).int().t()}, "block_table must be contiguous in its last dimension"),
        ({"seq_lens": torch.tensor([9, 0, 3, 0]).int()[::2]}, r"seq_lens must be contiguous, got strides \(2,\)"),
        ({"sinks": torch.zeros(12)[::2]}, "sinks must be contiguous"),
    ],
)
def test_violated_contract_gives_the_values(changes, message):
    inputs = make_inputs(Case("contract", ((6, 9), (1, 3))))
    if "key_cache" in changes:
        changes = changes | {"value_cache": changes["key_cache"]}
    with pytest.raises(UnsupportedShape, match=message):
        inputs.run(**changes)


@pytest.mark.parametrize(
    ("max_kv_len", "num_kv_heads", "sliding_window", "expected"),
    [
        (8192, 8, None, 8),
        (32768, 8, None, 4),
        (65536, 8, None, 2),
        (128000, 8, None, 1),
        (128000, 8, 128, 8),
        (60000, 6, None, 2),
        (30000, 6, None, 3),
        (10**6, 1, None, 1),
    ],
)
def test_heads_worked_on_together_share_the_cache(max_kv_len, num_kv_heads, sliding_window, expected):
    shape = AttentionShape(
        num_requests=1,
        max_query_len=100,
        max_kv_len=max_kv_len,
        num_q_heads=8 * num_kv_heads,
        num_kv_heads=num_kv_heads,
        head_dim=64,
        block_size=128,
        sliding_window=sliding_window,
        is_bf16=True,
        scores_in_log2=True,
    )
    assert heads_together(shape) == expected
