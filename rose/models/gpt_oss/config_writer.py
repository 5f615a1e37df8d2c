"""A `config.json` for a model's shape, in either published form: the reverse of `config.read_config`."""

import math
from typing import Any

from rose.errors import ConfigError
from rose.layers.rope import yarn_concentration
from rose.models.gpt_oss.config import GptOssConfig
from rose.models.gpt_oss.weight_map import Stored

# The quant_method of weights that no other program reads.
OWN_METHOD = "rose"

# Where the values below are not equal to these, OpenAI's form cannot say so.
_ORIGINAL_EPS = 1e-5
_ORIGINAL_ALPHA = 1.702


def write_config(config: GptOssConfig, stored: Stored) -> dict[str, Any]:
    """The `config.json` of a checkpoint that holds its weights as `stored`.

    Raises ConfigError for formats that the layout does not have, and for a shape that OpenAI's form cannot describe.
    """
    formats = stored.formats
    if stored.layout == "original":
        if (formats.experts, formats.dense) != ("mxfp4", "bf16"):
            raise ConfigError(
                "the original layout has experts in mxfp4 and the rest in bf16, not "
                f"{formats.experts}, {formats.dense}: give --experts mxfp4 --dense bf16"
            )
        return _original(config)
    result = _hugging_face(config)
    if stored.layout == "rose":
        method = {"quant_method": OWN_METHOD, "experts": formats.experts, "dense": formats.dense}
        return result | {"quantization_config": method}
    if formats.experts not in ("mxfp4", "bf16") or formats.dense != "bf16":
        raise ConfigError(
            "the hf layout has experts in mxfp4 or bf16 and the rest in bf16, not "
            f"{formats.experts}, {formats.dense}: give --experts mxfp4 (or bf16) --dense bf16"
        )
    if formats.experts == "mxfp4":
        result["quantization_config"] = {
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
            "quant_method": "mxfp4",
        }
    return result


def _hugging_face(config: GptOssConfig) -> dict[str, Any]:
    windows = {window for window in config.layer_windows if window is not None}
    if len(windows) > 1:
        raise ConfigError(f"config.json has one sliding window for all layers, not {sorted(windows)}")
    rope = config.rope
    result: dict[str, Any] = {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "experts_per_token": config.moe.experts_per_token,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initial_context_length": rope.original_context,
        "intermediate_size": config.moe.intermediate_size,
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in config.layer_windows],
        "max_position_embeddings": config.max_position,
        "model_type": "gpt_oss",
        "num_attention_heads": config.num_q_heads,
        "num_experts_per_tok": config.moe.experts_per_token,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads,
        "num_local_experts": config.moe.num_experts,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": rope.theta,
        "rope_scaling": {"rope_type": "default"},
        "sliding_window": next(iter(windows), None),
        "swiglu_limit": config.moe.swiglu_limit,
        "tie_word_embeddings": config.tie_word_embeddings,
        "vocab_size": config.vocab_size,
    }
    if rope.factor > 1 or rope.concentration != 1:
        result["rope_scaling"] = {
            "beta_fast": rope.beta_fast,
            "beta_slow": rope.beta_slow,
            "factor": rope.factor,
            "original_max_position_embeddings": rope.original_context,
            "rope_type": "yarn",
            "truncate": rope.truncate,
        }
        if not math.isclose(rope.concentration, yarn_concentration(rope.factor)):
            result["rope_scaling"]["attention_factor"] = rope.concentration
    if config.moe.swiglu_alpha != _ORIGINAL_ALPHA:
        result["swiglu_alpha"] = config.moe.swiglu_alpha
    if config.eos_token_ids:
        ids = list(config.eos_token_ids)
        result["eos_token_id"] = ids[0] if len(ids) == 1 else ids
    return result


def _original(config: GptOssConfig) -> dict[str, Any]:
    window = config.layer_windows[0]
    rope, moe = config.rope, config.moe
    alternating = tuple(window if layer % 2 == 0 else None for layer in range(config.num_layers))
    said = {
        "layers that alternate between sliding and full": window is not None and config.layer_windows == alternating,
        f"a norm epsilon of {_ORIGINAL_EPS}": config.rms_norm_eps == _ORIGINAL_EPS,
        f"a SwiGLU alpha of {_ORIGINAL_ALPHA}": moe.swiglu_alpha == _ORIGINAL_ALPHA,
        "a table for the unembedding": not config.tie_word_embeddings,
        "YaRN without truncation": not rope.truncate,
        f"a context of {rope.original_context} x {rope.factor:g} positions, not {config.max_position}": (
            config.max_position == int(rope.original_context * rope.factor)
        ),
        "YaRN's own concentration": math.isclose(rope.concentration, yarn_concentration(rope.factor)),
    }
    missing = [what for what, is_so in said.items() if not is_so]
    if missing:
        raise ConfigError(f"the original layout can only describe a model with {', '.join(missing)}")
    return {
        "num_hidden_layers": config.num_layers,
        "num_experts": moe.num_experts,
        "experts_per_token": moe.experts_per_token,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": moe.intermediate_size,
        "swiglu_limit": moe.swiglu_limit,
        "head_dim": config.head_dim,
        "num_attention_heads": config.num_q_heads,
        "num_key_value_heads": config.num_kv_heads,
        "sliding_window": window,
        "initial_context_length": rope.original_context,
        "rope_theta": rope.theta,
        "rope_scaling_factor": rope.factor,
        "rope_ntk_alpha": rope.beta_slow,
        "rope_ntk_beta": rope.beta_fast,
    }
