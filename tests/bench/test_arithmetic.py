"""Statistics and costs against tables worked out by hand."""

import math

import numpy as np
import pytest

from rose.bench.cost import Price
from rose.bench.summary import mean, median, percentile, summarize
from rose.cli.main import app
from rose.errors import ConfigError


def test_a_sample_by_hand():
    found = summarize([4.0, 1.0, 3.0, 2.0, 10.0])
    assert (found.count, found.mean, found.median, found.minimum, found.maximum) == (5, 4.0, 3.0, 1.0, 10.0)
    assert found.std == pytest.approx(math.sqrt(10))  # squares of 3, 2, 1, 0, 6 over 5
    assert found.p90 == pytest.approx(7.6)  # 0.6 of the way from 4 to 10
    assert found.p99 == pytest.approx(9.76)


def test_percentiles_are_numpys():
    values = list(np.random.default_rng(0).exponential(size=37))
    for percent in (0, 1, 25, 50, 90, 95, 99, 99.9, 100):
        assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))
    assert summarize(values).std == pytest.approx(np.std(values))


def test_small_samples():
    assert median([7.0]) == 7.0
    assert median([1.0, 2.0]) == 1.5
    assert summarize([7.0]).p99 == 7.0
    assert math.isnan(mean([]))
    assert math.isnan(summarize([]).median)


@pytest.mark.parametrize(
    ("gpu_hour_usd", "num_gpus", "num_tokens", "seconds", "usd"),
    [
        (3.0, 1, 8192, 0.364, 0.03703),  # 1/1200 $/s x 0.364 s = $0.00030333; x 1e6 / 8192
        (3.0, 1, 128000, 23.902, 0.15561),
        (3.0, 1, 1, 0.004, 3.3333),  # 250 tokens/s for one user
        (3.0, 1, 128, 0.032, 0.20833),  # 4000 tokens/s together
        (3.0, 8, 128, 0.032, 1.66667),
        (2.5, 2, 1000, 3.6, 5.0),  # 1/720 $/s x 3.6 s = $0.005 for 1000 tokens
    ],
)
def test_costs_by_hand(gpu_hour_usd, num_gpus, num_tokens, seconds, usd):
    assert Price(gpu_hour_usd, num_gpus).usd_per_million(num_tokens, seconds) == pytest.approx(usd, rel=1e-4)


@pytest.mark.parametrize("gpu_hour_usd", [-1.0, math.nan, math.inf])
def test_prices_that_cannot_be(gpu_hour_usd):
    with pytest.raises(ConfigError, match="a GPU's hour costs"):
        Price(gpu_hour_usd, 1)
    Price(0.0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prefill", "rose-demo", "--warmup", "-1"], "--warmup must be at least 0"),
        (["decode", "rose-demo", "--warmup", "-1"], "--warmup must be at least 0"),
        (["decode", "rose-demo", "--temperature", "nan"], "--temperature must be at least 0"),
        (["decode", "rose-demo", "--profile-steps", "0"], "--profile-steps must be at least 1"),
        (["ceilings", "--device", "moon"], "device must be"),
        (["ceilings", "--device", "meta"], "finds no such device"),
        (["ceilings", "--device", "cuda:99"], "finds no such device"),
        (["prefill", "rose-demo", "--device", "cuda:99", "--lengths", "8"], "finds no such device"),
        (["prefill", "rose-demo", "--gpu-hour-price", "-1", "--lengths", "8"], "a GPU's hour costs"),
    ],
)
def test_what_cannot_be_measured(arguments, message):
    with pytest.raises(ConfigError, match=message):
        app(["bench", *arguments], exit_on_error=False, result_action="return_value")
