"""Which tensor of a gpt-oss checkpoint fills which parameter, for the two published layouts and rose's own.

The Hugging Face layout (`model.layers.N...`) has query, key and value apart, and its experts either in MXFP4 or, as
transformers writes them, unquantized and transposed. OpenAI's own layout (`block.N...`) has them fused and its
experts in MXFP4. In both, expert rows of gate and up are interleaved, and so they stay. Rose's layout
(`blocks.N...`) has the parameters themselves, in any format.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from rose.models.gpt_oss.config import GptOssConfig
from rose.models.weight_map import Copy, Recode, SourceTensor, WeightFormats, WeightRule
from rose.numerics.format import FormatName, WeightFormat, get_format

Layout = Literal["hf", "original", "rose"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

_FLOATS = ("BF16", "F32", "F16")
_STORED_DTYPES: dict[torch.dtype, tuple[str, ...]] = {
    torch.uint8: ("U8",),
    torch.float8_e4m3fn: ("F8_E4M3",),
    torch.float32: ("F32",),
    torch.bfloat16: _FLOATS,
}


@dataclass(frozen=True, slots=True)
class Stored:
    """How a checkpoint holds its weights."""

    layout: Layout
    formats: WeightFormats


def find_stored(names: Collection[str]) -> Stored:
    """Recognize layout and formats by the tensors' names."""
    if any(name.startswith("block.") for name in names):
        return Stored("original", WeightFormats("mxfp4", "bf16"))
    if any(name.startswith("blocks.") for name in names):
        experts, dense = "blocks.0.mlp.gate_up", "blocks.0.attn.qkv"
        return Stored("rose", WeightFormats(_find_format(experts, names), _find_format(dense, names)))
    packed = any(name.endswith("_blocks") for name in names)
    return Stored("hf", WeightFormats("mxfp4" if packed else "bf16", "bf16"))


def _find_format(stem: str, names: Collection[str]) -> FormatName:
    suffixes: tuple[tuple[str, FormatName], ...] = (
        ("blocks", "mxfp4"),
        ("row_scales", "fp8"),
        ("block_scales", "fp8-block"),
    )
    return next((name for suffix, name in suffixes if f"{stem}.{suffix}" in names), "bf16")


def weight_rules(config: GptOssConfig, stored: Stored, formats: WeightFormats) -> list[WeightRule]:
    """The rules by which a checkpoint that is `stored` so fills a model with weights in `formats`."""
    make = {"hf": _hugging_face_rules, "original": _original_rules, "rose": _own_rules}[stored.layout]
    return list(make(config, stored.formats, formats))


def _floats(target: str, source: str, *shape: int, section: int | None = None) -> WeightRule:
    """A parameter, or a section of one, that is copied from one tensor of floats."""
    return WeightRule((target,), (SourceTensor(source, shape, _FLOATS),), Copy(), section, cut_rows=(1, 1))


def _recoded(
    target: str,
    sources: tuple[SourceTensor, ...],
    transform: Recode,
    shape: tuple[int, ...],
    *,
    section: int | None = None,
    may_cut: bool = True,
) -> WeightRule:
    """A weight, or a section of one, of logical `shape` in `transform.target`'s format."""
    targets = transform.target.parts(shape)
    if not may_cut:
        cut_rows = None
    elif len(shape) == 3:  # experts, one by one
        cut_rows = (1,) * (len(sources) + len(targets))
    else:
        source_rows, target_rows = transform.source.part_rows(), transform.target.part_rows()
        # The coarser of the two, in rows of the matrix.
        factor = max(source_rows[0], target_rows[0])
        cut_rows = (
            *(rows * factor // source_rows[0] for rows in source_rows),
            *(rows * factor // target_rows[0] for rows in target_rows),
        )
    names = tuple(f"{target}.{part.suffix}" for part in targets)
    return WeightRule(names, sources, transform, section, cut_rows)


def _stored_parts(names: tuple[str, ...], form: WeightFormat, shape: tuple[int, ...]) -> tuple[SourceTensor, ...]:
    """The tensors of a weight under these names, one for each part."""
    parts = zip(names, form.parts(shape), strict=True)
    return tuple(SourceTensor(name, part.shape, _STORED_DTYPES[part.dtype]) for name, part in parts)


def _dense(target: str, source: str, form: FormatName, *shape: int, section: int | None = None) -> WeightRule:
    """A matrix, or a section of one, that is one tensor of floats in the checkpoint."""
    if form == "bf16":
        return _floats(f"{target}.weight", source, *shape, section=section)
    tensors = (SourceTensor(source, shape, _FLOATS),)
    return _recoded(target, tensors, Recode(get_format("bf16"), get_format(form)), shape, section=section)


def _experts(
    target: str, names: tuple[str, ...], shape: tuple[int, ...], stored: FormatName, wanted: FormatName
) -> WeightRule:
    transform = Recode(get_format(stored), get_format(wanted))
    return _recoded(target, _stored_parts(names, transform.source, shape), transform, shape)


def _original_rules(config: GptOssConfig, stored: WeightFormats, wanted: WeightFormats) -> Iterator[WeightRule]:
    hidden, attended = config.hidden_size, config.num_q_heads * config.head_dim
    qkv_rows = attended + 2 * config.num_kv_heads * config.head_dim
    experts = config.moe.num_experts
    yield _floats("embedding.weight", "embedding.weight", config.vocab_size, hidden)
    yield _dense("unembedding", "unembedding.weight", wanted.dense, config.vocab_size, hidden)
    yield _floats("norm.weight", "norm.scale", hidden)
    for layer in range(config.num_layers):
        here, there = f"blocks.{layer}", f"block.{layer}"
        yield _floats(f"{here}.attn_norm.weight", f"{there}.attn.norm.scale", hidden)
        yield _dense(f"{here}.attn.qkv", f"{there}.attn.qkv.weight", wanted.dense, qkv_rows, hidden)
        yield _floats(f"{here}.attn.qkv.bias", f"{there}.attn.qkv.bias", qkv_rows)
        yield _floats(f"{here}.attn.attention.sinks", f"{there}.attn.sinks", config.num_q_heads)
        yield _dense(f"{here}.attn.out", f"{there}.attn.out.weight", wanted.dense, hidden, attended)
        yield _floats(f"{here}.attn.out.bias", f"{there}.attn.out.bias", hidden)
        yield _floats(f"{here}.mlp_norm.weight", f"{there}.mlp.norm.scale", hidden)
        yield _floats(f"{here}.mlp.router.weight", f"{there}.mlp.gate.weight", experts, hidden)
        yield _floats(f"{here}.mlp.router.bias", f"{there}.mlp.gate.bias", experts)
        for ours, theirs, shape in _expert_shapes(config, ("mlp1", "mlp2")):
            source = f"{there}.mlp.{theirs}_weight"
            names = (f"{source}.blocks", f"{source}.scales")
            yield _experts(f"{here}.mlp.{ours}", names, shape, stored.experts, wanted.experts)
            yield _floats(f"{here}.mlp.{ours}.bias", f"{there}.mlp.{theirs}_bias", *shape[:2])


def _hugging_face_rules(config: GptOssConfig, stored: WeightFormats, wanted: WeightFormats) -> Iterator[WeightRule]:
    hidden, attended = config.hidden_size, config.num_q_heads * config.head_dim
    yield _floats("embedding.weight", "model.embed_tokens.weight", config.vocab_size, hidden)
    if not config.tie_word_embeddings:
        yield _dense("unembedding", "lm_head.weight", wanted.dense, config.vocab_size, hidden)
    yield _floats("norm.weight", "model.norm.weight", hidden)
    for layer in range(config.num_layers):
        here, there = f"blocks.{layer}", f"model.layers.{layer}"
        yield _floats(f"{here}.attn_norm.weight", f"{there}.input_layernorm.weight", hidden)
        yield from _hugging_face_qkv(config, f"{here}.attn.qkv", f"{there}.self_attn", wanted.dense)
        yield _floats(f"{here}.attn.attention.sinks", f"{there}.self_attn.sinks", config.num_q_heads)
        yield _dense(f"{here}.attn.out", f"{there}.self_attn.o_proj.weight", wanted.dense, hidden, attended)
        yield _floats(f"{here}.attn.out.bias", f"{there}.self_attn.o_proj.bias", hidden)
        yield _floats(f"{here}.mlp_norm.weight", f"{there}.post_attention_layernorm.weight", hidden)
        yield _floats(f"{here}.mlp.router.weight", f"{there}.mlp.router.weight", config.moe.num_experts, hidden)
        yield _floats(f"{here}.mlp.router.bias", f"{there}.mlp.router.bias", config.moe.num_experts)
        for ours, theirs, shape in _expert_shapes(config, ("gate_up_proj", "down_proj")):
            target, source = f"{here}.mlp.{ours}", f"{there}.mlp.experts.{theirs}"
            if stored.experts == "mxfp4":
                names = (f"{source}_blocks", f"{source}_scales")
                yield _experts(target, names, shape, "mxfp4", wanted.experts)
            else:
                transposed = SourceTensor(source, (shape[0], shape[2], shape[1]), _FLOATS)
                transform = Recode(get_format("bf16"), get_format(wanted.experts), transposed=True)
                yield _recoded(target, (transposed,), transform, shape)
            yield _floats(f"{target}.bias", f"{source}_bias", *shape[:2])


def _hugging_face_qkv(config: GptOssConfig, target: str, source: str, wanted: FormatName) -> Iterator[WeightRule]:
    hidden = config.hidden_size
    kv_rows = config.num_kv_heads * config.head_dim
    rows = {"q": config.num_q_heads * config.head_dim, "k": kv_rows, "v": kv_rows}
    form = get_format(wanted)
    aligned = all(num_rows % form.block_shape[0] == 0 for num_rows in rows.values())
    for section, (letter, num_rows) in enumerate(rows.items()):
        yield _floats(f"{target}.bias", f"{source}.{letter}_proj.bias", num_rows, section=section)
        if aligned:
            yield _dense(target, f"{source}.{letter}_proj.weight", wanted, num_rows, hidden, section=section)
    if not aligned:
        # A block of rows with one scale lies across query and key, so they are taken together.
        tensors = tuple(
            SourceTensor(f"{source}.{letter}_proj.weight", (n, hidden), _FLOATS) for letter, n in rows.items()
        )
        yield _recoded(target, tensors, Recode(get_format("bf16"), form), (sum(rows.values()), hidden), may_cut=False)


def _own_rules(config: GptOssConfig, stored: WeightFormats, wanted: WeightFormats) -> Iterator[WeightRule]:
    hidden, attended = config.hidden_size, config.num_q_heads * config.head_dim
    qkv_rows = attended + 2 * config.num_kv_heads * config.head_dim
    experts = config.moe.num_experts

    def same(name: str, *shape: int) -> WeightRule:
        return _floats(name, name, *shape)

    def weight(stem: str, have: FormatName, want: FormatName, *shape: int) -> WeightRule:
        transform = Recode(get_format(have), get_format(want))
        names = tuple(f"{stem}.{part.suffix}" for part in transform.source.parts(shape))
        return _recoded(stem, _stored_parts(names, transform.source, shape), transform, shape)

    yield same("embedding.weight", config.vocab_size, hidden)
    if not config.tie_word_embeddings:
        yield weight("unembedding", stored.dense, wanted.dense, config.vocab_size, hidden)
    yield same("norm.weight", hidden)
    for layer in range(config.num_layers):
        here = f"blocks.{layer}"
        yield same(f"{here}.attn_norm.weight", hidden)
        yield weight(f"{here}.attn.qkv", stored.dense, wanted.dense, qkv_rows, hidden)
        yield same(f"{here}.attn.qkv.bias", qkv_rows)
        yield same(f"{here}.attn.attention.sinks", config.num_q_heads)
        yield weight(f"{here}.attn.out", stored.dense, wanted.dense, hidden, attended)
        yield same(f"{here}.attn.out.bias", hidden)
        yield same(f"{here}.mlp_norm.weight", hidden)
        yield same(f"{here}.mlp.router.weight", experts, hidden)
        yield same(f"{here}.mlp.router.bias", experts)
        for ours, _, shape in _expert_shapes(config, ("", "")):
            yield weight(f"{here}.mlp.{ours}", stored.experts, wanted.experts, *shape)
            yield same(f"{here}.mlp.{ours}.bias", *shape[:2])


def _expert_shapes(
    config: GptOssConfig, names: tuple[str, str]
) -> tuple[tuple[str, str, tuple[int, int, int]], tuple[str, str, tuple[int, int, int]]]:
    """For both expert matrices: the model's name, the checkpoint's, and the logical shape."""
    hidden, intermediate, experts = config.hidden_size, config.moe.intermediate_size, config.moe.num_experts
    return (
        ("gate_up", names[0], (experts, 2 * intermediate, hidden)),
        ("down", names[1], (experts, hidden, intermediate)),
    )
