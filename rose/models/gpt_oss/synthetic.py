"""Made-up weights for gpt-oss: statistics for every tensor.

The statistics keep a forward pass as well-behaved as a trained model's. The embedding dominates the residual stream,
so that hidden states of different tokens stay nearly orthogonal: a router with random rows of equal length then spreads
tokens evenly over experts, in the last layer as in the first. What attention and experts add is small enough that its
sum over 36 layers stays below the embedding.
"""

import math

from rose.models.gpt_oss.config import GptOssConfig
from rose.models.recipe import Directions, Mxfp4Codes, Mxfp4Scales, Normal, Recipe
from rose.numerics import mxfp4

# Of a trained model's scale exponents, rounded: most rows within a factor of two of each other, blocks likewise.
_ROW_OCTAVES = 0.7
_BLOCK_OCTAVES = 0.6
# Standard deviations of what a layer adds to a residual stream of 1: chosen by measuring, see
# tests/weights/test_synthetic.py.
_ATTENTION_GAIN = 0.4
_EXPERT_GAIN = 0.4


def recipes(config: GptOssConfig) -> list[Recipe]:
    """Every tensor of a checkpoint in the Hugging Face layout with MXFP4 experts."""
    hidden = config.hidden_size
    result = [_floats("model.embed_tokens.weight", 1.0, config.vocab_size, hidden)]
    for layer in range(config.num_layers):
        result += _layer(config, f"model.layers.{layer}")
    result.append(_floats("model.norm.weight", 0.1, hidden, mean=1.0))
    if not config.tie_word_embeddings:
        result.append(_floats("lm_head.weight", 2 / math.sqrt(hidden), config.vocab_size, hidden))
    return result


def _layer(config: GptOssConfig, prefix: str) -> list[Recipe]:
    hidden, moe = config.hidden_size, config.moe
    attended, kv_rows = config.num_q_heads * config.head_dim, config.num_kv_heads * config.head_dim
    unit = 1 / math.sqrt(hidden)
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    # What all layers add together stays below the embedding.
    depth = math.sqrt(config.num_layers)
    return [
        _floats(f"{prefix}.input_layernorm.weight", 0.1, hidden, mean=1.0),
        _floats(f"{attention}.q_proj.weight", unit, attended, hidden),
        _floats(f"{attention}.q_proj.bias", 0.1, attended),
        _floats(f"{attention}.k_proj.weight", unit, kv_rows, hidden),
        _floats(f"{attention}.k_proj.bias", 0.1, kv_rows),
        _floats(f"{attention}.v_proj.weight", unit, kv_rows, hidden),
        _floats(f"{attention}.v_proj.bias", 0.02, kv_rows),
        _floats(f"{attention}.o_proj.weight", _ATTENTION_GAIN / math.sqrt(attended) / depth, hidden, attended),
        _floats(f"{attention}.o_proj.bias", 0.002, hidden),
        _floats(f"{attention}.sinks", 1.0, config.num_q_heads),
        _floats(f"{prefix}.post_attention_layernorm.weight", 0.1, hidden, mean=1.0),
        Recipe(f"{mlp}.router.weight", (moe.num_experts, hidden), "BF16", Directions()),
        _floats(f"{mlp}.router.bias", 0.005, moe.num_experts),
        *_expert(f"{mlp}.experts.gate_up_proj", unit, moe.num_experts, 2 * moe.intermediate_size, hidden),
        *_expert(
            f"{mlp}.experts.down_proj",
            _EXPERT_GAIN / math.sqrt(moe.intermediate_size) / depth,
            moe.num_experts,
            hidden,
            moe.intermediate_size,
        ),
    ]


def _floats(name: str, std: float, *shape: int, mean: float = 0.0) -> Recipe:
    return Recipe(name, shape, "BF16", Normal(std, mean))


def _expert(name: str, std: float, num_experts: int, rows: int, columns: int) -> list[Recipe]:
    scales = (num_experts, rows, columns // mxfp4.BLOCK_ELEMENTS)
    return [
        Recipe(f"{name}_bias", (num_experts, rows), "BF16", Normal(0.01)),
        Recipe(f"{name}_blocks", (*scales, mxfp4.BLOCK_BYTES), "U8", Mxfp4Codes()),
        Recipe(f"{name}_scales", scales, "U8", Mxfp4Scales(std, _ROW_OCTAVES, _BLOCK_OCTAVES)),
    ]
