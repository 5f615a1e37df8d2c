"""The configs of the published gpt-oss models, for when no file is at hand. No torch here."""

from typing import Any

_SIZES = {"gpt-oss-20b": (24, 32), "gpt-oss-120b": (36, 128)}  # layers, experts
_OWNER = "openai/"


def published_names() -> tuple[str, ...]:
    """The models whose configs are built in."""
    return tuple(_SIZES)


def is_published(name: str) -> bool:
    """Whether this is one of them, with or without its owner: `gpt-oss-20b`, `openai/gpt-oss-20b`."""
    return name.removeprefix(_OWNER) in _SIZES


def published_config(name: str, num_layers: int | None = None) -> dict[str, Any]:
    """The `config.json` of a published model, with fewer or more layers if that is asked for.

    Source: https://huggingface.co/openai/gpt-oss-20b, gpt-oss-120b.
    """
    layers, experts = _SIZES[name.removeprefix(_OWNER)]
    layers = layers if num_layers is None else num_layers
    return {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "eos_token_id": 200002,
        "experts_per_token": 4,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2880,
        "initial_context_length": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 2880,
        "layer_types": [("sliding_attention", "full_attention")[layer % 2] for layer in range(layers)],
        "max_position_embeddings": 131072,
        "model_type": "gpt_oss",
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": layers,
        "num_key_value_heads": 8,
        "num_local_experts": experts,
        "output_router_logits": False,
        "pad_token_id": 199999,
        "quantization_config": {
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
            "quant_method": "mxfp4",
        },
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000,
        "router_aux_loss_coef": 0.9,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": 201088,
    }
