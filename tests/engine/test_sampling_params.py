"""Values out of range are refused, and the text names the field."""

import math
from typing import Any

import pytest

from rose.engine.sampling_params import SamplingParams
from rose.errors import RequestError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 129),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", math.nan),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("top_k", -1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("repetition_penalty", 1e-40),
        ("repetition_penalty", math.nan),
        ("logit_bias", {1: math.inf}),
        ("logit_bias", {1: 1e308}),
        ("logit_bias", {1: math.nan}),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("logprobs", -1),
        ("logprobs", 21),
        ("max_tokens", 0),
        ("max_tokens", 10**30),
        ("min_tokens", 10**30),
        ("top_k", 10**30),
        ("logit_bias", {10**30: 1.0}),
        ("stop_token_ids", (1, -(10**30))),
        ("min_tokens", -1),
    ],
)
def test_out_of_range(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=field):
        SamplingParams(**{field: value}).validate()


def test_min_tokens_above_max_tokens() -> None:
    with pytest.raises(RequestError, match=r"min_tokens \(5\) is larger than max_tokens \(4\)"):
        SamplingParams(min_tokens=5, max_tokens=4).validate()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.0, top_k=0, min_p=1.0, seed=-(2**63), logprobs=0, max_tokens=1, min_tokens=1),
        SamplingParams(n=128, temperature=2.0, repetition_penalty=0.01, seed=2**63 - 1, logprobs=20),
    ],
)
def test_in_range(params: SamplingParams) -> None:
    params.validate()
