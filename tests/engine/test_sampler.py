"""Each sampling parameter against a plain oracle, and the draws against their distribution."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.engine.sampling_params import SamplingParams
from rose.engine.worker.logits import adjust_logits, truncate_logits
from rose.engine.worker.sampler import SamplingRow, sample, uniform


def row(
    params: SamplingParams,
    *,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    seed: int = 0,
    stop_ids: tuple[int, ...] = (),
) -> SamplingRow:
    return SamplingRow(
        params=params,
        seed=seed,
        stop_ids=stop_ids,
        prompt_token_ids=np.array(prompt, dtype=np.int64),
        output_token_ids=np.array(output, dtype=np.int64),
    )


def random_logits(num_rows: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


def kept(logits: Sequence[float], params: SamplingParams) -> list[int]:
    """The ids that truncation leaves, by the definition in `SamplingParams`."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    order = order[: params.top_k or len(order)]
    weights = [math.exp(logits[i] - max(logits)) for i in order]
    result, before = [], 0.0
    for token_id, weight in zip(order, weights, strict=True):
        if before < params.top_p * sum(weights) * (1 + 1e-6) and weight >= params.min_p * weights[0] * (1 - 1e-6):
            result.append(token_id)
        before += weight
    return sorted(result)


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from([-4.0, -1.5, 0.0, 0.25, 0.5, 1.0, 2.5, 3.0]), min_size=1, max_size=12),
    st.integers(0, 14),
    st.sampled_from([1.0, 0.999, 0.8, 0.37, 0.05]),
    st.sampled_from([0.0, 0.01, 0.2, 1.0]),
)
def test_truncation_keeps_what_the_definition_keeps(
    logits: list[float], top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
    truncated = truncate_logits(torch.tensor([logits]), [row(params)])[0]
    assert truncated.isfinite().nonzero()[:, 0].tolist() == kept(logits, params)


def test_truncation_beyond_the_candidates_sorts_everything() -> None:
    logits = random_logits(2, 5000) * 0.01  # nearly flat: the nucleus is thousands of tokens
    for params in (SamplingParams(top_p=0.9), SamplingParams(top_k=3000), SamplingParams(min_p=0.85)):
        truncated = truncate_logits(logits.clone(), [row(params), row(SamplingParams(top_k=2))])
        num_kept = int(truncated[0].isfinite().sum())
        assert abs(num_kept - len(kept(logits[0].tolist(), params))) <= 1  # float32 sums may differ at the edge
        assert num_kept > 1024
        assert int(truncated[1].isfinite().sum()) == 2


def test_rows_are_truncated_independently() -> None:
    logits = random_logits(5, 40)
    rows = [
        row(SamplingParams()),
        row(SamplingParams(top_k=1)),
        row(SamplingParams(top_p=0.5)),
        row(SamplingParams(min_p=0.3)),
        row(SamplingParams(top_k=7, top_p=0.9, min_p=0.01)),
    ]
    together = truncate_logits(logits.clone(), rows)
    for i, one in enumerate(rows):
        assert torch.equal(together[i], truncate_logits(logits[i : i + 1].clone(), [one])[0])
    assert torch.equal(together[0], logits[0])


def test_top_k_one_is_greedy_even_among_equals() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 5.0]])
    for seed in range(20):
        assert sample(logits, [row(SamplingParams(top_k=1), seed=seed)])[0].token_id == 1


def test_penalties() -> None:
    logits = random_logits(1, 10)
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=1.3)
    adjusted = adjust_logits(logits, [row(params, prompt=[1, 1, 2], output=[2, 3, 3, 3])])[0]
    for token_id in range(10):
        expected = float(logits[0, token_id])
        if token_id in (1, 2, 3):
            expected = expected / 1.3 if expected > 0 else expected * 1.3
        count = {2: 1, 3: 3}.get(token_id, 0)
        expected -= 0.25 * count + 0.5 * (count > 0)
        assert adjusted[token_id] == pytest.approx(expected, abs=1e-5)


def test_penalties_leave_other_rows_and_the_input_alone() -> None:
    logits = random_logits(2, 10)
    before = logits.clone()
    adjusted = adjust_logits(logits, [row(SamplingParams()), row(SamplingParams(presence_penalty=2.0), output=[4])])
    assert torch.equal(logits, before)
    assert torch.equal(adjusted[0], before[0])
    assert adjusted[1, 4] == before[1, 4] - 2.0


def test_logits_that_nothing_changes_are_not_copied() -> None:
    logits = random_logits(1, 10)
    assert adjust_logits(logits, [row(SamplingParams(top_p=0.5), output=[1])]) is logits


def test_logit_bias() -> None:
    logits = random_logits(2, 10)
    adjusted = adjust_logits(logits, [row(SamplingParams(logit_bias={3: 100.0, 4: -100.0})), row(SamplingParams())])
    assert adjusted[0].argmax() == 3
    assert adjusted[0].argmin() == 4
    assert torch.equal(adjusted[1], logits[1])


def test_min_tokens_masks_stop_ids_until_then() -> None:
    logits = torch.zeros(1, 4)
    params = SamplingParams(min_tokens=2, logit_bias={1: 5.0})
    for num_output, masked in ((0, True), (1, True), (2, False)):
        adjusted = adjust_logits(logits, [row(params, output=[0] * num_output, stop_ids=(1, 2))])[0]
        assert adjusted.isinf().tolist() == [False, masked, masked, False]


@pytest.mark.parametrize("temperature", [0.0, 1e-6])
def test_greedy_takes_the_best_after_adjustment(temperature: float) -> None:
    logits = random_logits(3, 20)
    rows = [row(SamplingParams(temperature=temperature, logit_bias=bias)) for bias in (None, {7: 99.0}, None)]
    ids = [sampled.token_id for sampled in sample(logits, rows)]
    assert ids == [int(logits[0].argmax()), 7, int(logits[2].argmax())]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=2.0),
        SamplingParams(top_k=3),
        SamplingParams(top_p=0.7),
        SamplingParams(min_p=0.2),
        SamplingParams(temperature=1.5, top_k=5, top_p=0.8, logit_bias={0: 1.0}),
    ],
    ids=repr,
)
def test_draws_follow_the_distribution(params: SamplingParams) -> None:
    count = 20_000
    logits = torch.tensor([1.0, 0.5, -0.3, 2.0, -2.0, 0.0, 1.2, -1.0])
    biased = [x + (params.logit_bias or {}).get(i, 0.0) for i, x in enumerate(logits.tolist())]
    scaled = [x / params.temperature for x in biased]
    keep = kept(scaled, params)
    weights = np.array([math.exp(x) if i in keep else 0.0 for i, x in enumerate(scaled)])
    expected = weights / weights.sum() * count
    drawn = sample(logits.expand(count, -1), [row(params, seed=seed) for seed in range(count)])
    observed = np.bincount([one.token_id for one in drawn], minlength=8)
    assert not observed[expected == 0].any()
    chi_square = ((observed - expected)[expected > 0] ** 2 / expected[expected > 0]).sum()
    assert chi_square < 30  # 7 degrees of freedom: p < 1e-4, and the seeds are fixed


def test_positions_draw_independently() -> None:
    values = np.array([uniform(5, position) for position in range(4000)])
    assert 0.0 < values.min() < 0.01 < 0.99 < values.max() < 1.0
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.05
    assert abs(values.mean() - 0.5) < 0.02
    assert uniform(5, 0) != uniform(6, 0)


def test_each_output_position_draws_anew() -> None:
    logits = torch.zeros(1, 1000)
    drawn = [sample(logits, [row(SamplingParams(), output=[0] * length)])[0].token_id for length in range(20)]
    assert len(set(drawn)) > 10
    assert drawn[7] == int(uniform(0, 7) * 1000)


def test_a_row_draws_the_same_in_any_company() -> None:
    params = [
        SamplingParams(),
        SamplingParams(top_p=0.6),
        SamplingParams(temperature=0.0),
        SamplingParams(top_k=4, presence_penalty=1.0),
        SamplingParams(min_p=0.1, logprobs=2),
    ]
    logits = random_logits(5, 3000)
    rows = [row(p, seed=40 + i, output=[1] * i) for i, p in enumerate(params)]
    alone = [sample(logits[i : i + 1], [rows[i]])[0] for i in range(5)]
    before = logits.clone()
    crowd = [i % 5 for i in range(333)]  # of each kind more than are worked on at a time
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0], [1, 3, 1], crowd):
        together = sample(logits[order], [rows[i] for i in order])
        assert [one.token_id for one in together] == [alone[i].token_id for i in order]
        for one, i in zip(together, order, strict=True):
            assert (one.logprobs is None) == (alone[i].logprobs is None)
            if one.logprobs is not None and alone[i].logprobs is not None:
                assert one.logprobs.logprob == pytest.approx(alone[i].logprobs.logprob, abs=1e-5)
    assert torch.equal(logits, before)


def test_logprobs_are_those_of_the_raw_logits() -> None:
    logits = random_logits(3, 12)
    params = SamplingParams(temperature=0.3, top_k=2, presence_penalty=2.0, logprobs=4)
    rows = [row(params, output=[1, 2]), row(SamplingParams()), row(SamplingParams(logprobs=0))]
    first, second, third = sample(logits, rows)
    raw = logits.log_softmax(-1)
    assert first.logprobs is not None
    assert third.logprobs is not None
    assert second.logprobs is None
    assert first.logprobs.logprob == pytest.approx(float(raw[0, first.token_id]), abs=1e-5)
    assert [token_id for token_id, _ in first.logprobs.top] == raw[0].topk(4).indices.tolist()
    assert [value for _, value in first.logprobs.top] == pytest.approx(raw[0].topk(4).values.tolist(), abs=1e-5)
    assert third.logprobs.top == []


def test_more_logprobs_than_tokens() -> None:
    [one] = sample(random_logits(1, 3), [row(SamplingParams(logprobs=20))])
    assert one.logprobs is not None
    assert len(one.logprobs.top) == 3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0.0), SamplingParams(top_p=0.5)])
def test_bad_logits_spoil_only_their_row(bad: float, params: SamplingParams) -> None:
    logits = random_logits(3, 30)
    logits[1, 4] = bad
    good = [sample(logits[i : i + 1], [row(params)])[0].token_id for i in (0, 2)]
    sampled = sample(logits, [row(params)] * 3)
    assert [one.is_valid for one in sampled] == [True, False, True]
    assert [sampled[0].token_id, sampled[2].token_id] == good
    assert not sample(torch.full((1, 30), bad), [row(params)])[0].is_valid


def test_a_logit_of_minus_infinity_is_a_token_never_drawn() -> None:
    logits = torch.full((1, 6), -math.inf)
    logits[0, 2] = logits[0, 5] = 1.0
    for params in (SamplingParams(), SamplingParams(top_p=0.9), SamplingParams(top_k=4)):
        drawn = {sample(logits, [row(params, seed=seed)])[0].token_id for seed in range(50)}
        assert drawn == {2, 5}


def test_a_temperature_just_above_greedy_overflows_nothing() -> None:
    logits = random_logits(1, 30) * 1000
    [one] = sample(logits, [row(SamplingParams(temperature=1.1e-5))])
    assert one.is_valid
    assert one.token_id == int(logits.argmax())
