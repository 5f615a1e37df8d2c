"""gpt-oss in a form that trains fast at this size.

The architecture is the published one. What differs from serving code is only the way of computing: all experts run on
all tokens as two large matrix products and the router's weights select (with 4 of 8 experts active this wastes half,
and costs less than sorting tokens would), and attention is written out, with any mask.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo.config import DemoConfig
from demo.fake_quant import fake_quantize


def yarn_tables(config: DemoConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines for every position, [max_positions, head_dim / 2] float32, scaled as YaRN asks."""
    half = config.head_dim // 2
    frequency = config.rope_theta ** -(torch.arange(half, dtype=torch.float64) / half)

    def dimension(rotations: float) -> float:
        """The (fractional) index of the frequency that turns so often over the original context."""
        wavelength_ratio = config.yarn_original_positions / (rotations * 2 * math.pi)
        return half * math.log(wavelength_ratio) / math.log(config.rope_theta)

    low, high = dimension(config.yarn_beta_fast), dimension(config.yarn_beta_slow)
    ramp = ((torch.arange(half, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    frequency = frequency * (1 - ramp) + frequency / config.yarn_factor * ramp
    angle = torch.arange(config.max_positions, dtype=torch.float64)[:, None] * frequency
    scale = 0.1 * math.log(config.yarn_factor) + 1
    return (angle.cos() * scale).float(), (angle.sin() * scale).float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, by halves. x: [batch, length, heads, head_dim]; cos, sin: [batch, length, 1, head_dim / 2]."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


class RMSNorm(nn.Module):
    """Root-mean-square norm with a weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] in float32."""
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    """Grouped-query attention with a learned sink per query head."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.num_kv_heads = config.num_kv_heads
        self.group = config.num_q_heads // config.num_kv_heads
        q_size, kv_size = config.num_q_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, q_size)
        self.k_proj = nn.Linear(config.hidden_size, kv_size)
        self.v_proj = nn.Linear(config.hidden_size, kv_size)
        self.o_proj = nn.Linear(q_size, config.hidden_size)
        self.sinks = nn.Parameter(torch.zeros(config.num_q_heads))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """x: [batch, length, hidden]. mask: [batch, length, length] bool, true where a query sees a key."""
        batch, length, _ = x.shape
        q = rotate(self.q_proj(x).unflatten(-1, (-1, self.head_dim)), cos, sin).transpose(1, 2)
        k = rotate(self.k_proj(x).unflatten(-1, (-1, self.head_dim)), cos, sin).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        # The query heads that share a key head become rows of one matrix product.
        q = q.reshape(batch, self.num_kv_heads, self.group * length, self.head_dim)
        scores = (q @ k.transpose(-1, -2)).view(batch, self.num_kv_heads, self.group, length, length).float()
        scores = (scores * self.head_dim**-0.5).masked_fill(~mask[:, None, None], -1e30)
        sinks = self.sinks.view(1, self.num_kv_heads, self.group, 1)
        # The sink takes part in the denominator only.
        total = torch.logaddexp(scores.logsumexp(-1), sinks)
        weights = (scores - total[..., None]).exp().to(v.dtype)
        out = weights.view(batch, self.num_kv_heads, self.group * length, length) @ v
        out = out.view(batch, self.num_kv_heads * self.group, length, self.head_dim)
        merged: Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))
        return merged


class MoE(nn.Module):
    """Mixture of experts: top-k, then softmax; gate and up rows interleaved; clamped SwiGLU."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        num_experts, hidden, inner = config.num_experts, config.hidden_size, config.intermediate_size
        self.num_experts, self.top_k = num_experts, config.experts_per_token
        self.limit, self.alpha = config.swiglu_limit, config.swiglu_alpha
        self.router = nn.Linear(hidden, num_experts)
        self.gate_up_proj = nn.Parameter(torch.empty(num_experts, 2 * inner, hidden))
        self.gate_up_proj_bias = nn.Parameter(torch.zeros(num_experts, 2 * inner))
        self.down_proj = nn.Parameter(torch.empty(num_experts, hidden, inner))
        self.down_proj_bias = nn.Parameter(torch.zeros(num_experts, hidden))

    def forward(self, x: Tensor, quantize: bool) -> tuple[Tensor, Tensor]:
        """x: [tokens, hidden]. Returns the output and the load-balancing loss, which is 1 for an even load."""
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.float(), self.router.weight, self.router.bias)
        top, chosen = logits.topk(self.top_k, dim=-1)
        weights = torch.zeros_like(logits).scatter(-1, chosen, top.softmax(-1))  # [tokens, experts]
        balance = self._balance_loss(logits, weights)
        gate_up_proj = fake_quantize(self.gate_up_proj) if quantize else self.gate_up_proj
        down_proj = fake_quantize(self.down_proj) if quantize else self.down_proj
        gate_up = F.linear(x, gate_up_proj.flatten(0, 1))  # [tokens, experts * 2 * inner]
        gate_up = gate_up.unflatten(-1, (self.num_experts, -1)) + self.gate_up_proj_bias
        gate = gate_up[..., ::2].clamp(max=self.limit)
        up = gate_up[..., 1::2].clamp(-self.limit, self.limit)
        inner = (up + 1) * gate * torch.sigmoid(self.alpha * gate) * weights[..., None]
        # With the weights already on the inner activations, one product sums over experts too.
        out = inner.flatten(-2) @ down_proj.transpose(1, 2).flatten(0, 1)
        return out + weights @ self.down_proj_bias, balance

    def _balance_loss(self, logits: Tensor, weights: Tensor) -> Tensor:
        """Share of tokens times mean probability, summed over experts (Switch Transformers, section 2.2)."""
        share = (weights > 0).float().mean(0) / self.top_k
        return self.num_experts * (share * logits.softmax(-1).mean(0)).sum()


class Layer(nn.Module):
    """Attention and experts, each behind a norm and beside the residual stream."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MoE(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, quantize: bool) -> tuple[Tensor, Tensor]:
        """x: [batch, length, hidden] float32. Returns the new residual stream and the load-balancing loss."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        out, balance = self.mlp(self.post_attention_layernorm(x).flatten(0, 1), quantize)
        return x + out.view_as(x), balance


class DemoModel(nn.Module):
    """The whole model. `quantize` rounds expert weights to MXFP4 in every forward pass."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: DemoConfig, quantize: bool = True) -> None:
        super().__init__()
        self.config = config
        self.quantize = quantize
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        cos, sin = yarn_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor, documents: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and mean load-balancing loss.

        tokens, documents: [batch, length]. Tokens see only tokens of their own document, whose positions start at 0.
        """
        index = torch.arange(tokens.shape[1], device=tokens.device)
        starts = torch.zeros_like(documents, dtype=torch.bool)
        starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
        positions = index - (index * starts).cummax(1).values
        cos, sin = self.cos[positions][:, :, None], self.sin[positions][:, :, None]
        distance = index[:, None] - index
        full = (documents[:, :, None] == documents[:, None, :]) & (distance >= 0)
        sliding = full & (distance < self.config.sliding_window)
        x = self.embed_tokens(tokens)
        balance = x.new_zeros(())
        for number, layer in enumerate(self.layers):
            mask = sliding if self.config.is_sliding(number) else full
            x, layer_balance = layer(x, cos, sin, mask, self.quantize)
            balance = balance + layer_balance
        return self.lm_head(self.norm(x)), balance / len(self.layers)

    @torch.no_grad()
    def initialize(self, seed: int = 0) -> None:
        """Draw the initial weights: normal, and smaller where a product adds to the residual stream."""
        generator = torch.Generator().manual_seed(seed)
        std = self.config.hidden_size**-0.5
        for name, parameter in self.named_parameters():
            if name.endswith(("bias", "sinks")):
                parameter.zero_()
            elif parameter.dim() > 1:
                adds = name.endswith(("o_proj.weight", "down_proj"))
                scale = std / math.sqrt(2 * self.config.num_layers) if adds else std
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
