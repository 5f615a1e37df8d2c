"""Tiny random gpt-oss checkpoints, written in every layout that `rose` loads.

Nothing in them is trivial: sinks, biases, norms and router are random, several query heads share each of several kv
heads, and the number of layers is odd, so that a mistake in any of these shows in the logits.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

Layout = Literal["hugging_face", "hugging_face_floats", "original"]


@dataclass(frozen=True, slots=True)
class TinyShape:
    """Sizes of a tiny gpt-oss."""

    vocab_size: int = 97
    hidden_size: int = 64
    intermediate_size: int = 96
    num_layers: int = 3
    num_q_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 16
    num_experts: int = 7
    experts_per_token: int = 4
    sliding_window: int = 8
    original_context: int = 64
    factor: float = 8.0
    truncate: bool | None = False  # None leaves the key out
    theta: float = 150000.0
    tie_word_embeddings: bool = False

    @property
    def max_position(self) -> int:
        return int(self.original_context * self.factor)


def hugging_face_config(shape: TinyShape) -> dict[str, Any]:
    rope = {
        "rope_type": "yarn",
        "factor": shape.factor,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": shape.original_context,
    }
    if shape.truncate is not None:
        rope["truncate"] = shape.truncate
    return {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_q_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "num_local_experts": shape.num_experts,
        "num_experts_per_tok": shape.experts_per_token,
        "experts_per_token": shape.experts_per_token,
        "sliding_window": shape.sliding_window,
        "layer_types": [("sliding_attention", "full_attention")[i % 2] for i in range(shape.num_layers)],
        "rope_theta": shape.theta,
        "rope_scaling": rope,
        "initial_context_length": shape.original_context,
        "max_position_embeddings": shape.max_position,
        "rms_norm_eps": 1e-5,
        "swiglu_limit": 7.0,
        "hidden_act": "silu",
        "attention_bias": True,
        "tie_word_embeddings": shape.tie_word_embeddings,
        "eos_token_id": 2,
        "quantization_config": {"quant_method": "mxfp4"},
    }


def original_config(shape: TinyShape) -> dict[str, Any]:
    return {
        "num_hidden_layers": shape.num_layers,
        "num_experts": shape.num_experts,
        "experts_per_token": shape.experts_per_token,
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "swiglu_limit": 7.0,
        "head_dim": shape.head_dim,
        "num_attention_heads": shape.num_q_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "sliding_window": shape.sliding_window,
        "initial_context_length": shape.original_context,
        "rope_theta": shape.theta,
        "rope_scaling_factor": shape.factor,
        "rope_ntk_alpha": 1,
        "rope_ntk_beta": 32,
    }


def random_weights(shape: TinyShape, seed: int = 0) -> dict[str, Tensor]:
    """Tensors in the Hugging Face layout: bfloat16, and experts in MXFP4 from random bytes."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int, std: float = 1.0, mean: float = 0.0) -> Tensor:
        return (torch.randn(size, generator=generator) * std + mean).bfloat16()

    def byte(low: int, high: int, *size: int) -> Tensor:
        return torch.randint(low, high, size, generator=generator, dtype=torch.uint8)

    hidden, experts, head_dim = shape.hidden_size, shape.num_experts, shape.head_dim
    attended = shape.num_q_heads * head_dim
    weights = {"model.embed_tokens.weight": normal(shape.vocab_size, hidden)}
    if not shape.tie_word_embeddings:
        weights["lm_head.weight"] = normal(shape.vocab_size, hidden, std=1 / math.sqrt(hidden))
    weights["model.norm.weight"] = normal(hidden, std=0.3, mean=1.0)
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}.{norm}.weight"] = normal(hidden, std=0.3, mean=1.0)
        for letter, rows, columns in (
            ("q", attended, hidden),
            ("k", shape.num_kv_heads * head_dim, hidden),
            ("v", shape.num_kv_heads * head_dim, hidden),
            ("o", hidden, attended),
        ):
            weights[f"{prefix}.self_attn.{letter}_proj.weight"] = normal(rows, columns, std=1 / math.sqrt(columns))
            weights[f"{prefix}.self_attn.{letter}_proj.bias"] = normal(rows, std=0.3)
        weights[f"{prefix}.self_attn.sinks"] = normal(shape.num_q_heads, std=1.5)
        weights[f"{prefix}.mlp.router.weight"] = normal(experts, hidden, std=2 / math.sqrt(hidden))
        weights[f"{prefix}.mlp.router.bias"] = normal(experts, std=0.5)
        for name, rows, columns in (
            ("gate_up_proj", 2 * shape.intermediate_size, hidden),
            ("down_proj", hidden, shape.intermediate_size),
        ):
            experts_prefix = f"{prefix}.mlp.experts.{name}"
            weights[f"{experts_prefix}_blocks"] = byte(0, 256, experts, rows, columns // 32, 16)
            weights[f"{experts_prefix}_scales"] = byte(120, 125, experts, rows, columns // 32)
            weights[f"{experts_prefix}_bias"] = normal(experts, rows, std=0.5)
    return weights


def expand_experts(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights with experts as transformers writes them: floats [num_experts, in, out].

    Decoded here by the definition of the format, element by element, and not by the code under test.
    """
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    expanded: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if name.endswith("_blocks"):
            stem = name.removesuffix("_blocks")
            scales = torch.pow(2.0, weights[f"{stem}_scales"].float() - 127)  # [experts, rows, groups]
            nibbles = torch.stack([tensor % 16, tensor // 16], dim=-1).flatten(-2)  # low nibble first
            signs = torch.where(nibbles >= 8, -1.0, 1.0)
            values = signs * magnitudes[(nibbles % 8).long()] * scales.unsqueeze(-1)
            expanded[stem] = values.flatten(-2).transpose(1, 2).contiguous()
        elif not name.endswith("_scales"):
            expanded[name] = tensor
    return expanded


def to_original_layout(weights: dict[str, Tensor], shape: TinyShape) -> dict[str, Tensor]:
    """Rename, and fuse query, key and value."""
    original = {
        "embedding.weight": weights["model.embed_tokens.weight"],
        "unembedding.weight": weights["lm_head.weight"],
        "norm.scale": weights["model.norm.weight"],
    }
    for layer in range(shape.num_layers):
        here, there = f"block.{layer}", f"model.layers.{layer}"
        original[f"{here}.attn.norm.scale"] = weights[f"{there}.input_layernorm.weight"]
        original[f"{here}.mlp.norm.scale"] = weights[f"{there}.post_attention_layernorm.weight"]
        original[f"{here}.attn.sinks"] = weights[f"{there}.self_attn.sinks"]
        for kind in ("weight", "bias"):
            parts = [weights[f"{there}.self_attn.{letter}_proj.{kind}"] for letter in "qkv"]
            original[f"{here}.attn.qkv.{kind}"] = torch.cat(parts)
            original[f"{here}.attn.out.{kind}"] = weights[f"{there}.self_attn.o_proj.{kind}"]
            original[f"{here}.mlp.gate.{kind}"] = weights[f"{there}.mlp.router.{kind}"]
        for ours, theirs in (("mlp1", "gate_up_proj"), ("mlp2", "down_proj")):
            original[f"{here}.mlp.{ours}_bias"] = weights[f"{there}.mlp.experts.{theirs}_bias"]
            for kind in ("blocks", "scales"):
                original[f"{here}.mlp.{ours}_weight.{kind}"] = weights[f"{there}.mlp.experts.{theirs}_{kind}"]
    return original


def write_tensors(folder: Path, tensors: dict[str, Tensor], *, num_files: int = 1) -> None:
    """Write safetensors, with an index when there are several files."""
    if num_files == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    index: dict[str, str] = {}
    for number in range(num_files):
        file_name = f"model-{number + 1:05d}-of-{num_files:05d}.safetensors"
        part = dict(list(tensors.items())[number::num_files])
        save_file(part, folder / file_name)
        index |= dict.fromkeys(part, file_name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def write_checkpoint(
    folder: Path,
    shape: TinyShape = TinyShape(),
    *,
    layout: Layout = "hugging_face",
    num_files: int = 1,
    seed: int = 0,
    config_changes: dict[str, Any] | None = None,
) -> Path:
    """Write a random checkpoint into `folder`, which is made; the same seed gives the same model in every layout."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = random_weights(shape, seed)
    config = original_config(shape) if layout == "original" else hugging_face_config(shape)
    if layout == "original":
        weights = to_original_layout(weights, shape)
    elif layout == "hugging_face_floats":
        weights = expand_experts(weights)
        del config["quantization_config"]
    for key, value in (config_changes or {}).items():
        config[key] = value
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
    write_tensors(folder, weights, num_files=num_files)
    return folder
