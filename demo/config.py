"""The shape of `rose-demo`: gpt-oss with smaller numbers, and its `config.json`."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """What the training model needs to know. Everything not here is as in gpt-oss."""

    vocab_size: int = 2048
    hidden_size: int = 256
    num_layers: int = 6
    num_q_heads: int = 8
    num_kv_heads: int = 2
    head_dim: int = 64
    num_experts: int = 8
    experts_per_token: int = 4
    intermediate_size: int = 256
    sliding_window: int = 128
    swiglu_limit: float = 7.0
    swiglu_alpha: float = 1.702
    rms_norm_eps: float = 1e-5
    rope_theta: float = 150_000.0
    yarn_factor: float = 32.0
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    yarn_original_positions: int = 4096
    max_positions: int = 8192

    def is_sliding(self, layer: int) -> bool:
        """Whether this layer's attention sees only the window: the even ones."""
        return layer % 2 == 0


def published_config(config: DemoConfig, eos_token_id: int, pad_token_id: int) -> dict[str, Any]:
    """`config.json`, with the keys of openai/gpt-oss-20b's."""
    layer_types = [
        "sliding_attention" if config.is_sliding(layer) else "full_attention" for layer in range(config.num_layers)
    ]
    return {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "eos_token_id": eos_token_id,
        "experts_per_token": config.experts_per_token,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initial_context_length": config.yarn_original_positions,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "layer_types": layer_types,
        "max_position_embeddings": config.max_positions,
        "model_type": "gpt_oss",
        "num_attention_heads": config.num_q_heads,
        "num_experts_per_tok": config.experts_per_token,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads,
        "num_local_experts": config.num_experts,
        "output_router_logits": False,
        "pad_token_id": pad_token_id,
        "quantization_config": {
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
            "quant_method": "mxfp4",
        },
        "rms_norm_eps": config.rms_norm_eps,
        "rope_scaling": {
            "beta_fast": config.yarn_beta_fast,
            "beta_slow": config.yarn_beta_slow,
            "factor": config.yarn_factor,
            "original_max_position_embeddings": config.yarn_original_positions,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": int(config.rope_theta),
        "router_aux_loss_coef": 0.9,
        "sliding_window": config.sliding_window,
        "swiglu_limit": config.swiglu_limit,
        "tie_word_embeddings": False,
        "transformers_version": "4.55.0.dev0",
        "use_cache": True,
        "vocab_size": config.vocab_size,
    }
