import dataclasses

import pytest

from rose.errors import CheckpointError, UnsupportedModel
from rose.models.gpt_oss.config import read_config
from rose.models.registry import plan_model
from tests.checkpoints import TinyShape, hugging_face_config, original_config

SHAPE = TinyShape()

# The published sizes, as both forms of gpt-oss-20b's config.json give them.
PUBLISHED = TinyShape(
    vocab_size=201088, hidden_size=2880, intermediate_size=2880, num_layers=24, num_q_heads=64, num_kv_heads=8,
    head_dim=64, num_experts=32, experts_per_token=4, sliding_window=128, original_context=4096, factor=32.0,
)  # fmt: skip


def without_eos(config):
    return dataclasses.replace(config, eos_token_ids=())


@pytest.mark.parametrize("shape", [SHAPE, PUBLISHED], ids=["tiny", "published"])
def test_both_forms_say_the_same(shape):
    theirs = read_config(hugging_face_config(shape), "config.json")
    original = read_config(original_config(shape), "config.json")
    assert without_eos(theirs) == original


def test_published_20b():
    config = read_config(original_config(PUBLISHED), "config.json")
    assert config.num_parameters == 20_914_757_184
    assert config.max_position == 131072
    assert config.layer_windows == (128, None) * 12
    assert config.rope.concentration == pytest.approx(1.3465735902799727)
    assert config.rope.truncate is False


def test_first_layer_slides():
    assert read_config(original_config(SHAPE), "config.json").layer_windows == (8, None, 8)
    config = hugging_face_config(SHAPE)
    del config["layer_types"]
    assert read_config(config, "config.json").layer_windows == (8, None, 8)


def test_layer_types_are_followed():
    config = hugging_face_config(SHAPE) | {"layer_types": ["full_attention"] * 3, "sliding_window": None}
    assert read_config(config, "config.json").layer_windows == (None, None, None)


def test_rope_parameters_of_transformers_5():
    old = hugging_face_config(SHAPE)
    new = dict(old)
    new["rope_parameters"] = {**new.pop("rope_scaling"), "rope_theta": new.pop("rope_theta")}
    assert read_config(new, "config.json") == read_config(old, "config.json")


def test_truncate_left_out_is_true_as_in_transformers():
    config = hugging_face_config(TinyShape(truncate=None))
    assert read_config(config, "config.json").rope.truncate is True


def test_rope_without_scaling():
    config = hugging_face_config(SHAPE) | {"rope_scaling": {"rope_type": "default"}}
    rope = read_config(config, "config.json").rope
    assert (rope.theta, rope.factor, rope.concentration) == (150000.0, 1.0, 1.0)


def test_attention_factor_replaces_the_concentration():
    config = hugging_face_config(SHAPE)
    config["rope_scaling"]["attention_factor"] = 1.25
    assert read_config(config, "config.json").rope.concentration == 1.25


@pytest.mark.parametrize(("value", "ids"), [(5, (5,)), ([200002, 7], (200002, 7)), (None, ()), ([], ())])
def test_eos_token_ids(value, ids):
    assert read_config(hugging_face_config(SHAPE) | {"eos_token_id": value}, "config.json").eos_token_ids == ids


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("hidden_size", ..., "hidden_size is missing; it must be a positive integer"),
        ("hidden_size", 0, "hidden_size must be a positive integer, got 0"),
        ("hidden_size", "64", "hidden_size must be a positive integer, got '64'"),
        ("hidden_size", True, "hidden_size must be a positive integer, got True"),
        ("hidden_size", 64.5, "hidden_size must be a positive integer"),
        ("num_hidden_layers", -1, "num_hidden_layers"),
        ("num_hidden_layers", 10**18, "num_hidden_layers must be a positive integer of at most 4096"),
        ("hidden_size", 10**18, "hidden_size must be a positive integer of at most 16777216"),
        ("max_position_embeddings", 10**30, "max_position_embeddings must be a positive integer of at most"),
        ("vocab_size", None, "vocab_size is missing"),
        ("num_key_value_heads", 4, "num_attention_heads .6. is not a multiple of num_key_value_heads .4."),
        ("head_dim", 15, "head_dim must be even"),
        ("num_experts_per_tok", 9, "9 experts, but there are only 7"),
        ("num_local_experts", ..., "num_local_experts is missing"),
        ("rms_norm_eps", 0, "rms_norm_eps must be a number above 0, got 0"),
        ("swiglu_limit", float("nan"), "swiglu_limit"),
        ("rms_norm_eps", 10**400, "rms_norm_eps must be a number above 0, got 1000"),
        ("rms_norm_eps", -(10**400), "rms_norm_eps must be a number above 0, got -1000"),
        ("rope_theta", float("inf"), "rope_theta must be a number above 1, got inf"),
        ("sliding_window", 0, "sliding_window"),
        ("layer_types", ["full_attention"], "layer_types must be a list of 3 layer types"),
        ("eos_token_id", "<eos>", "eos_token_id must be a token id or a list"),
        ("tie_word_embeddings", 1, "tie_word_embeddings must be true or false"),
        ("rope_theta", ..., "rope_theta is missing"),
        ("rope_scaling", ..., "rope_scaling is missing"),
        ("rope_scaling", {"rope_type": "yarn", "factor": 0.5}, "rope_scaling: factor must be a number of at least 1"),
        ("rope_scaling", {"rope_type": "yarn", "beta_fast": 1e308}, "beta_fast must be a number above 0, at most 1e"),
        ("rope_scaling", {"rope_type": "yarn", "beta_slow": 1e308}, "beta_slow must be a number above 0, at most 1e"),
        ("rope_scaling", {"rope_type": "yarn", "truncate": "no"}, "rope_scaling: truncate must be true or false"),
    ],
)
def test_bad_values_name_the_key(key, value, message):
    config = hugging_face_config(SHAPE)
    config[key] = value
    config = {k: v for k, v in config.items() if v is not ...}
    with pytest.raises(CheckpointError, match=f"(?s)folder/config.json.*{message}"):
        read_config(config, "folder/config.json")


def test_sizes_beyond_measure_only_together():
    config = hugging_face_config(SHAPE) | dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size"), 1 << 24)
    with pytest.raises(CheckpointError, match=r"the sizes make a model of .* parameters"):
        read_config(config, "config.json")


@pytest.mark.parametrize("factor", [1e9, 1e308])
def test_a_context_stretched_beyond_measure(factor):
    config = original_config(SHAPE) | {"rope_scaling_factor": factor}
    with pytest.raises(CheckpointError, match="rope_scaling_factor must be one that stretches"):
        read_config(config, "config.json")


@pytest.mark.parametrize("key", sorted(set(original_config(SHAPE)) - {"swiglu_limit"}))
def test_original_form_needs_its_keys(key):
    config = original_config(SHAPE)
    del config[key]
    with pytest.raises(CheckpointError):
        plan_model(config, [], "config.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type 'llama' is not served; served are gpt_oss"),
        ({"model_type": None}, "model_type None"),
        ({"model_type": ["gpt_oss"]}, "model_type"),
        ({"attention_bias": False}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"layer_types": ["chunked_attention"] * 3}, "chunked_attention"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        ({"rope_scaling": {"rope_type": "yarn", "mscale": 1.0}}, "mscale"),
        ({"rope_scaling": {"rope_type": "yarn", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"hidden_size": 48}, "multiples of 32, got 48"),
    ],
)
def test_unsupported_variants(changes, message):
    config = hugging_face_config(SHAPE) | changes
    with pytest.raises(UnsupportedModel, match=message):
        plan_model(config, ["model.layers.0.mlp.experts.gate_up_proj_blocks"], "config.json")
