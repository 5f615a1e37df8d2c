"""Which tensor of a gpt-oss checkpoint fills which parameter, for both published layouts.

The Hugging Face layout (`model.layers.N...`) has query, key and value apart, and its experts either in MXFP4 or, as
transformers writes them, unquantized and transposed. OpenAI's own layout (`block.N...`) has them fused and its
experts in MXFP4. In both, expert rows of gate and up are interleaved, and so they stay.
"""

from collections.abc import Collection, Iterator, Sequence

from torch import Tensor

from rose.models.gpt_oss.config import GptOssConfig
from rose.models.weight_map import SourceTensor, WeightRule, copy
from rose.numerics import mxfp4

_FLOATS = ("BF16", "F32", "F16")
_BYTES = ("U8",)


def has_original_names(names: Collection[str]) -> bool:
    """Whether these are tensor names of OpenAI's own layout."""
    return "embedding.weight" in names


def has_mxfp4_experts(names: Collection[str]) -> bool:
    """Whether a checkpoint with these tensors holds its experts in MXFP4."""
    return any(name.endswith(("_blocks", ".blocks")) for name in names)


def weight_rules(config: GptOssConfig, names: Collection[str], *, packed_experts: bool) -> list[WeightRule]:
    """The rules for a checkpoint with tensors of these names.

    packed_experts: whether the model keeps MXFP4 experts as they are, or expanded.
    """
    if has_original_names(names):
        return list(_original_rules(config, packed_experts))
    return list(_hugging_face_rules(config, has_mxfp4_experts(names), packed_experts))


def _rule(target: str, source: str, *shape: int, section: int | None = None) -> WeightRule:
    """A parameter, or a section of one, that is copied from one tensor of floats."""
    return WeightRule(target, (SourceTensor(source, shape, _FLOATS),), copy, section)


def _original_rules(config: GptOssConfig, packed: bool) -> Iterator[WeightRule]:
    hidden, attended = config.hidden_size, config.num_q_heads * config.head_dim
    qkv_rows = attended + 2 * config.num_kv_heads * config.head_dim
    intermediate, experts = config.moe.intermediate_size, config.moe.num_experts
    yield _rule("embedding.weight", "embedding.weight", config.vocab_size, hidden)
    yield _rule("unembedding.weight", "unembedding.weight", config.vocab_size, hidden)
    yield _rule("norm.weight", "norm.scale", hidden)
    for layer in range(config.num_layers):
        here, there = f"blocks.{layer}", f"block.{layer}"
        yield _rule(f"{here}.attn_norm.weight", f"{there}.attn.norm.scale", hidden)
        yield _rule(f"{here}.attn.qkv.weight", f"{there}.attn.qkv.weight", qkv_rows, hidden)
        yield _rule(f"{here}.attn.qkv.bias", f"{there}.attn.qkv.bias", qkv_rows)
        yield _rule(f"{here}.attn.attention.sinks", f"{there}.attn.sinks", config.num_q_heads)
        yield _rule(f"{here}.attn.out.weight", f"{there}.attn.out.weight", hidden, attended)
        yield _rule(f"{here}.attn.out.bias", f"{there}.attn.out.bias", hidden)
        yield _rule(f"{here}.mlp_norm.weight", f"{there}.mlp.norm.scale", hidden)
        yield _rule(f"{here}.mlp.router.weight", f"{there}.mlp.gate.weight", experts, hidden)
        yield _rule(f"{here}.mlp.router.bias", f"{there}.mlp.gate.bias", experts)
        for ours, theirs, shape in (
            ("gate_up", "mlp1", (experts, 2 * intermediate, hidden)),
            ("down", "mlp2", (experts, hidden, intermediate)),
        ):
            source = f"{there}.mlp.{theirs}_weight"
            yield from _mxfp4_rules(f"{here}.mlp.{ours}", f"{source}.blocks", f"{source}.scales", shape, packed)
            yield _rule(f"{here}.mlp.{ours}.bias", f"{there}.mlp.{theirs}_bias", *shape[:2])


def _hugging_face_rules(config: GptOssConfig, quantized: bool, packed: bool) -> Iterator[WeightRule]:
    hidden, attended = config.hidden_size, config.num_q_heads * config.head_dim
    kv_rows = config.num_kv_heads * config.head_dim
    intermediate, experts = config.moe.intermediate_size, config.moe.num_experts
    yield _rule("embedding.weight", "model.embed_tokens.weight", config.vocab_size, hidden)
    if not config.tie_word_embeddings:
        yield _rule("unembedding.weight", "lm_head.weight", config.vocab_size, hidden)
    yield _rule("norm.weight", "model.norm.weight", hidden)
    for layer in range(config.num_layers):
        here, there = f"blocks.{layer}", f"model.layers.{layer}"
        yield _rule(f"{here}.attn_norm.weight", f"{there}.input_layernorm.weight", hidden)
        for section, (letter, rows) in enumerate((("q", attended), ("k", kv_rows), ("v", kv_rows))):
            source = f"{there}.self_attn.{letter}_proj"
            yield _rule(f"{here}.attn.qkv.weight", f"{source}.weight", rows, hidden, section=section)
            yield _rule(f"{here}.attn.qkv.bias", f"{source}.bias", rows, section=section)
        yield _rule(f"{here}.attn.attention.sinks", f"{there}.self_attn.sinks", config.num_q_heads)
        yield _rule(f"{here}.attn.out.weight", f"{there}.self_attn.o_proj.weight", hidden, attended)
        yield _rule(f"{here}.attn.out.bias", f"{there}.self_attn.o_proj.bias", hidden)
        yield _rule(f"{here}.mlp_norm.weight", f"{there}.post_attention_layernorm.weight", hidden)
        yield _rule(f"{here}.mlp.router.weight", f"{there}.mlp.router.weight", experts, hidden)
        yield _rule(f"{here}.mlp.router.bias", f"{there}.mlp.router.bias", experts)
        for ours, theirs, shape in (
            ("gate_up", "gate_up_proj", (experts, 2 * intermediate, hidden)),
            ("down", "down_proj", (experts, hidden, intermediate)),
        ):
            target, source = f"{here}.mlp.{ours}", f"{there}.mlp.experts.{theirs}"
            if quantized:
                yield from _mxfp4_rules(target, f"{source}_blocks", f"{source}_scales", shape, packed)
            else:
                transposed = SourceTensor(source, (shape[0], shape[2], shape[1]), _FLOATS)
                yield WeightRule(f"{target}.weight", (transposed,), _fill_transposed)
            yield _rule(f"{target}.bias", f"{source}_bias", *shape[:2])


def _mxfp4_rules(
    target: str, blocks_name: str, scales_name: str, shape: tuple[int, int, int], packed: bool
) -> Iterator[WeightRule]:
    """An expert weight of logical `shape` [num_experts, out_features, in_features], from its two tensors."""
    *outer, in_features = shape
    scales_shape = (*outer, in_features // mxfp4.BLOCK_ELEMENTS)
    blocks = SourceTensor(blocks_name, (*scales_shape, mxfp4.BLOCK_BYTES), _BYTES)
    scales = SourceTensor(scales_name, scales_shape, _BYTES)
    if packed:
        yield WeightRule(f"{target}.blocks", (blocks,), copy)
        yield WeightRule(f"{target}.scales", (scales,), _fill_scales)
    else:
        yield WeightRule(f"{target}.weight", (blocks, scales), _fill_decoded)


def _fill_scales(target: Tensor, sources: Sequence[Tensor]) -> None:
    mxfp4.check_scales(sources[0])
    copy(target, sources)


def _fill_decoded(target: Tensor, sources: Sequence[Tensor]) -> None:
    """Expand one expert at a time, so that no second copy of all of them is needed."""
    blocks, scales = sources
    mxfp4.check_scales(scales)
    for expert in range(target.shape[0]):
        target[expert].copy_(mxfp4.decode(blocks[expert], scales[expert], target.dtype))


def _fill_transposed(target: Tensor, sources: Sequence[Tensor]) -> None:
    copy(target, [sources[0].transpose(1, 2)])
