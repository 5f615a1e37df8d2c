"""The shape of a gpt-oss model, read from either of the two forms of `config.json` it is published with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rose.errors import CheckpointError, UnsupportedModel
from rose.layers.forward_batch import AttentionSpec
from rose.layers.moe import MoEConfig
from rose.layers.rope import RopeConfig, yarn_concentration
from rose.models.config_reader import MAX_SIZE, ConfigReader

# What OpenAI's own code fixes and its config therefore does not say; the Hugging Face form may say it.
_RMS_NORM_EPS = 1e-5
_SWIGLU_ALPHA = 1.702
_SWIGLU_LIMIT = 7.0

# What a damaged config may claim beyond, nothing can reckon with.
_MAX_LAYERS = 4096
_MAX_PARAMETERS = 1 << 48
_MAX_ROTATIONS = 1e6  # within a model's original context


@dataclass(frozen=True, slots=True)
class GptOssConfig:
    """Everything the model is built from.

    layer_windows: for each layer its sliding window, which counts the current token, or None for full attention.
    max_position: the longest context. eos_token_ids: what the checkpoint's config says ends a text; may be empty.
    """

    vocab_size: int
    hidden_size: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    layer_windows: tuple[int | None, ...]
    moe: MoEConfig
    rope: RopeConfig
    rms_norm_eps: float
    max_position: int
    eos_token_ids: tuple[int, ...]
    tie_word_embeddings: bool

    @property
    def num_layers(self) -> int:
        """Number of transformer blocks."""
        return len(self.layer_windows)

    @property
    def attention_specs(self) -> tuple[AttentionSpec, ...]:
        """What each layer keeps in the KV cache."""
        return tuple(AttentionSpec(self.num_kv_heads, self.head_dim, window) for window in self.layer_windows)

    @property
    def num_expert_weights(self) -> int:
        """Elements of the experts' matrices, all layers together, without their biases."""
        return self.num_layers * self.moe.num_experts * 3 * self.moe.intermediate_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """Number of weights in elements; a tied embedding counts once."""
        hidden, moe = self.hidden_size, self.moe
        attended, kv_rows = self.num_q_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = (attended + 2 * kv_rows) * (hidden + 1) + (attended + 1) * hidden + self.num_q_heads
        router = moe.num_experts * (hidden + 1)
        expert_biases = moe.num_experts * (2 * moe.intermediate_size + hidden)
        layers = self.num_layers * (attention + router + expert_biases + 2 * hidden) + self.num_expert_weights
        embeddings = (1 if self.tie_word_embeddings else 2) * self.vocab_size * hidden
        return layers + embeddings + hidden


def is_original_config(config: Mapping[str, Any]) -> bool:
    """Whether this is OpenAI's own form, which names no architecture but has keys that nothing else has."""
    return "model_type" not in config and {"num_experts", "experts_per_token", "rope_ntk_alpha"} <= config.keys()


def read_config(config: Mapping[str, Any], source: str) -> GptOssConfig:
    """Read a parsed `config.json`; `source` is its path, for messages.

    Raises CheckpointError, naming the key, for a missing or impossible value, and UnsupportedModel for a variant of
    the architecture that was never published.
    """
    reader = ConfigReader(config, source)
    result = _read_original(reader) if is_original_config(config) else _read_hugging_face(reader)
    if result.num_q_heads % result.num_kv_heads:
        raise CheckpointError(
            f"{source}: num_attention_heads ({result.num_q_heads}) is not a multiple of num_key_value_heads"
            f" ({result.num_kv_heads})"
        )
    if result.head_dim % 2:
        raise CheckpointError(f"{source}: head_dim must be even for rotary embedding, got {result.head_dim}")
    if result.moe.experts_per_token > result.moe.num_experts:
        raise CheckpointError(
            f"{source}: each token goes to {result.moe.experts_per_token} experts, but there are only"
            f" {result.moe.num_experts}"
        )
    if result.num_parameters > _MAX_PARAMETERS:
        raise CheckpointError(f"{source}: the sizes make a model of {result.num_parameters:.2g} parameters")
    return result


def _read_original(reader: ConfigReader) -> GptOssConfig:
    factor = reader.number("rope_scaling_factor", at_least=1)
    original_context = reader.integer("initial_context_length")
    window = reader.integer("sliding_window")
    max_position = original_context * factor
    if max_position > MAX_SIZE:
        raise reader.error("rope_scaling_factor", f"one that stretches the context to at most {MAX_SIZE}")
    return GptOssConfig(
        vocab_size=reader.integer("vocab_size"),
        hidden_size=reader.integer("hidden_size"),
        num_q_heads=reader.integer("num_attention_heads"),
        num_kv_heads=reader.integer("num_key_value_heads"),
        head_dim=reader.integer("head_dim"),
        layer_windows=_alternating(reader.integer("num_hidden_layers", at_most=_MAX_LAYERS), window),
        moe=_read_moe(reader, num_experts="num_experts", experts_per_token="experts_per_token"),
        rope=RopeConfig(
            theta=reader.number("rope_theta", above=1),
            factor=factor,
            original_context=original_context,
            # Rotations at which stretching ends (beta) and is complete (alpha).
            beta_fast=reader.number("rope_ntk_beta", above=0, at_most=_MAX_ROTATIONS),
            beta_slow=reader.number("rope_ntk_alpha", above=0, at_most=_MAX_ROTATIONS),
            truncate=False,
            concentration=yarn_concentration(factor),
        ),
        rms_norm_eps=_RMS_NORM_EPS,
        max_position=int(max_position),
        eos_token_ids=(),
        tie_word_embeddings=False,
    )


def _read_hugging_face(reader: ConfigReader) -> GptOssConfig:
    if not reader.boolean("attention_bias", default=True):
        raise UnsupportedModel(f"{reader.source}: attention_bias is false; gpt-oss has biases in attention")
    activation = reader.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModel(f"{reader.source}: hidden_act must be 'silu', got {activation!r}")
    max_position = reader.integer("max_position_embeddings")
    return GptOssConfig(
        vocab_size=reader.integer("vocab_size"),
        hidden_size=reader.integer("hidden_size"),
        num_q_heads=reader.integer("num_attention_heads"),
        num_kv_heads=reader.integer("num_key_value_heads"),
        head_dim=reader.integer("head_dim"),
        layer_windows=_read_layer_windows(reader),
        moe=_read_moe(reader, num_experts="num_local_experts", experts_per_token="num_experts_per_tok"),
        rope=_read_hugging_face_rope(reader, max_position),
        rms_norm_eps=reader.number("rms_norm_eps", above=0, default=_RMS_NORM_EPS),
        max_position=max_position,
        eos_token_ids=reader.token_ids("eos_token_id"),
        tie_word_embeddings=reader.boolean("tie_word_embeddings", default=False),
    )


def _read_moe(reader: ConfigReader, *, num_experts: str, experts_per_token: str) -> MoEConfig:
    return MoEConfig(
        hidden_size=reader.integer("hidden_size"),
        intermediate_size=reader.integer("intermediate_size"),
        num_experts=reader.integer(num_experts),
        experts_per_token=reader.integer(experts_per_token),
        swiglu_alpha=reader.number("swiglu_alpha", above=0, default=_SWIGLU_ALPHA),
        swiglu_limit=reader.number("swiglu_limit", above=0, default=_SWIGLU_LIMIT),
    )


def _alternating(num_layers: int, window: int) -> tuple[int | None, ...]:
    """Even layers slide, the first one included; odd layers see everything."""
    return tuple(window if layer % 2 == 0 else None for layer in range(num_layers))


def _read_layer_windows(reader: ConfigReader) -> tuple[int | None, ...]:
    num_layers = reader.integer("num_hidden_layers", at_most=_MAX_LAYERS)
    layer_types = reader.get("layer_types", None)
    if layer_types is None:
        return _alternating(num_layers, reader.integer("sliding_window"))
    if not isinstance(layer_types, list) or len(layer_types) != num_layers:
        raise reader.error("layer_types", f"a list of {num_layers} layer types")
    known = ("sliding_attention", "full_attention")
    unknown = [layer_type for layer_type in layer_types if layer_type not in known]
    if unknown:
        raise UnsupportedModel(f"{reader.source}: layer_types has {unknown[0]!r}; known are {', '.join(known)}")
    return tuple(
        reader.integer("sliding_window") if layer_type == "sliding_attention" else None for layer_type in layer_types
    )


def _read_hugging_face_rope(reader: ConfigReader, max_position: int) -> RopeConfig:
    """Read `rope_parameters` (transformers 5), or `rope_scaling` with `rope_theta` beside it.

    `truncate` is false in the published configs. Where the key is absent it is true, as for every other reader of
    this form; a config that was never meant so would show it as slightly wrong long-range attention only.
    """
    outer = reader
    name = "rope_parameters" if reader.get("rope_parameters", None) is not None else "rope_scaling"
    rope = reader.section(name)
    theta = (rope if rope.get("rope_theta", None) is not None else outer).number("rope_theta", above=1)
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type == "default":
        return RopeConfig(theta, 1.0, max_position, 32.0, 1.0, truncate=False, concentration=1.0)
    if rope_type != "yarn":
        raise UnsupportedModel(f"{reader.source}: {name} has rope_type {rope_type!r}; known are yarn, default")
    for key in ("mscale", "mscale_all_dim"):
        if rope.get(key, None):
            raise UnsupportedModel(f"{rope.source}: {key} is not supported")
    if rope.number("partial_rotary_factor", default=1.0) != 1.0:
        raise UnsupportedModel(f"{rope.source}: partial_rotary_factor is not supported")
    original_context = rope.integer("original_max_position_embeddings", default=max_position)
    factor = rope.number("factor", at_least=1, default=max_position / original_context)
    return RopeConfig(
        theta=theta,
        factor=factor,
        original_context=original_context,
        beta_fast=rope.number("beta_fast", above=0, at_most=_MAX_ROTATIONS, default=32.0),
        beta_slow=rope.number("beta_slow", above=0, at_most=_MAX_ROTATIONS, default=1.0),
        truncate=rope.boolean("truncate", default=True),
        concentration=rope.number("attention_factor", above=0, default=yarn_concentration(factor)),
    )
