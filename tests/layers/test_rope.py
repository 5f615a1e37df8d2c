"""Frequencies and angles against `transformers`; the rotation itself is tested with its op."""

import math

import pytest
import torch
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRotaryEmbedding

from rose.layers.rope import RopeConfig, RotaryEmbedding, inverse_frequencies, yarn_concentration

PUBLISHED = RopeConfig(150000.0, 32.0, 4096, 32.0, 1.0, truncate=False, concentration=yarn_concentration(32.0))


def transformers_rotary(config, head_dim, *, truncate):
    parameters = {
        "rope_type": "yarn",
        "rope_theta": config.theta,
        "factor": config.factor,
        "beta_fast": config.beta_fast,
        "beta_slow": config.beta_slow,
        "original_max_position_embeddings": config.original_context,
    }
    if truncate is not None:
        parameters["truncate"] = truncate
    return GptOssRotaryEmbedding(GptOssConfig(head_dim=head_dim, rope_parameters=parameters))


@pytest.mark.parametrize("truncate", [False, True, None])
@pytest.mark.parametrize("head_dim", [16, 64])
@pytest.mark.parametrize("original_context", [16, 4096])
def test_frequencies_equal_those_of_transformers(original_context, head_dim, truncate):
    config = RopeConfig(
        150000.0, 32.0, original_context, 32.0, 1.0, truncate=truncate is not False, concentration=1.0
    )  # the key left out means true
    theirs = transformers_rotary(config, head_dim, truncate=truncate)
    assert torch.equal(inverse_frequencies(config, head_dim), theirs.inv_freq)
    assert theirs.attention_scaling == yarn_concentration(config.factor)


def test_a_ramp_of_no_width_is_a_step():
    config = RopeConfig(150000.0, 32.0, 4096, 4.0, 4.0, truncate=False, concentration=1.0)
    assert torch.equal(inverse_frequencies(config, 64), transformers_rotary(config, 64, truncate=False).inv_freq)


def test_truncate_false_is_not_truncate_true():
    truncated = RopeConfig(150000.0, 32.0, 4096, 32.0, 1.0, truncate=True, concentration=1.0)
    assert not torch.allclose(inverse_frequencies(PUBLISHED, 64), inverse_frequencies(truncated, 64), rtol=1e-3)


def test_fast_pairs_are_left_alone_and_slow_ones_divided():
    plain = RopeConfig(150000.0, 1.0, 4096, 32.0, 1.0, truncate=False, concentration=1.0)
    ratio = inverse_frequencies(plain, 64) / inverse_frequencies(PUBLISHED, 64)
    # A pair turns 4096 / (2 pi theta**(2i/64)) times within the original context: 32 times at i = 8.09, once at 17.4.
    assert torch.allclose(ratio[:9], torch.ones(9))
    assert torch.allclose(ratio[18:], torch.full((14,), 32.0))
    assert (ratio[9:18] > 1).all()
    assert (ratio[9:18] < 32).all()


def test_table_holds_angles_times_concentration():
    rotary = RotaryEmbedding(PUBLISHED, head_dim=64, max_position=131072)
    rotary.after_load(torch.device("cpu"))
    positions = torch.tensor([0, 1, 4095, 4096, 131071])
    cos, sin = transformers_rotary(PUBLISHED, 64, truncate=False)(torch.zeros(1), positions[None])
    assert torch.equal(rotary.table[positions], torch.cat([cos[0], sin[0]], dim=-1))
    assert rotary.table[0, 0].item() == pytest.approx(0.1 * math.log(32) + 1)


def test_concentration_of_an_unstretched_context_is_one():
    assert yarn_concentration(1.0) == 1.0
