"""gpt-oss by its definition, in float32 and without a KV cache: slow, and written apart from `model.py`.

Weights are asked for as they are needed, so that a model far larger than memory can be run: one matrix at a time, and
of the experts only those that a token goes to.

Source: the model card (arXiv 2508.10925) and openai/gpt-oss, gpt_oss/torch/model.py.
"""

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from rose.layers.rope import inverse_frequencies
from rose.models.gpt_oss.config import GptOssConfig


class Weights(Protocol):
    """The parameters of the model, by the names of `model.py`, as float32."""

    def get(self, name: str) -> Tensor:
        """All of it."""
        ...

    def get_row(self, name: str, index: int) -> Tensor:
        """One entry of the first dimension: an expert's part."""
        ...


@torch.inference_mode()
def reference_logits(config: GptOssConfig, weights: Weights, texts: list[list[int]]) -> list[Tensor]:
    """The logits after each token of each text, [len(text), vocab_size] float32."""
    embedding = weights.get("embedding.weight")
    states = [F.embedding(torch.tensor(text), embedding) for text in texts]
    if not config.tie_word_embeddings:
        del embedding
    for layer in range(config.num_layers):
        states = _attention(config, weights, layer, states)
        # Experts know no positions, so all texts go through them together.
        lengths = [len(state) for state in states]
        states = list(_experts(config, weights, layer, torch.cat(states)).split(lengths))
    norm = weights.get("norm.weight")
    table = embedding if config.tie_word_embeddings else weights.get("unembedding.weight")
    return [_normalize(config, state, norm) @ table.T for state in states]


def _attention(config: GptOssConfig, weights: Weights, layer: int, states: list[Tensor]) -> list[Tensor]:
    prefix = f"blocks.{layer}.attn"
    norm, sinks = weights.get(f"blocks.{layer}.attn_norm.weight"), weights.get(f"{prefix}.attention.sinks")
    qkv, qkv_bias = weights.get(f"{prefix}.qkv.weight"), weights.get(f"{prefix}.qkv.bias")
    out, out_bias = weights.get(f"{prefix}.out.weight"), weights.get(f"{prefix}.out.bias")
    results = []
    for state in states:
        heads = F.linear(_normalize(config, state, norm), qkv, qkv_bias).unflatten(-1, (-1, config.head_dim))
        q, k, v = heads.split([config.num_q_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        q, k = _rotate(config, q), _rotate(config, k)
        group = config.num_q_heads // config.num_kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(config.head_dim)
        scores = scores.masked_fill(~_visible(len(state), config.layer_windows[layer]), -math.inf)
        # A sink is one more thing to attend to, which has no value.
        sink = sinks.view(-1, 1, 1).expand(-1, len(state), 1)
        shares = torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]
        attended = torch.einsum("hqk,khd->qhd", shares, v).flatten(1)
        results.append(state + F.linear(attended, out, out_bias))
    return results


def _visible(length: int, window: int | None) -> Tensor:
    """Which keys each query sees: itself and what is before it, within the window, which counts itself."""
    distance = torch.arange(length).unsqueeze(1) - torch.arange(length)
    return (distance >= 0) & (distance < (length if window is None else window))


def _rotate(config: GptOssConfig, heads: Tensor) -> Tensor:
    """Turn each half-dimension pair (i, i + head_dim / 2) of [length, heads, head_dim] by its position."""
    angles = torch.arange(len(heads)).float().unsqueeze(1) * inverse_frequencies(config.rope, config.head_dim)
    cos, sin = (f(angles).mul(config.rope.concentration).unsqueeze(1) for f in (torch.cos, torch.sin))
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _experts(config: GptOssConfig, weights: Weights, layer: int, state: Tensor) -> Tensor:
    prefix, moe = f"blocks.{layer}.mlp", config.moe
    normalized = _normalize(config, state, weights.get(f"blocks.{layer}.mlp_norm.weight"))
    scores = F.linear(normalized, weights.get(f"{prefix}.router.weight"), weights.get(f"{prefix}.router.bias"))
    best, chosen = scores.topk(moe.experts_per_token, dim=-1)
    shares = torch.softmax(best, dim=-1)
    gate_up_bias, down_bias = weights.get(f"{prefix}.gate_up.bias"), weights.get(f"{prefix}.down.bias")
    result = state.clone()
    for expert in chosen.unique().tolist():
        rows, slots = (chosen == expert).nonzero(as_tuple=True)
        gate_up = F.linear(normalized[rows], weights.get_row(f"{prefix}.gate_up.weight", expert), gate_up_bias[expert])
        gate = gate_up[:, 0::2].clamp(max=moe.swiglu_limit)
        up = gate_up[:, 1::2].clamp(-moe.swiglu_limit, moe.swiglu_limit)
        hidden = gate * torch.sigmoid(moe.swiglu_alpha * gate) * (up + 1)
        out = F.linear(hidden, weights.get_row(f"{prefix}.down.weight", expert), down_bias[expert])
        result[rows] += out * shares[rows, slots].unsqueeze(-1)
    return result


def _normalize(config: GptOssConfig, x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps) * weight
