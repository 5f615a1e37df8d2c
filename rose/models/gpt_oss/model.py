"""gpt-oss: a pre-norm transformer whose layers alternate between sliding and full attention, with experts throughout.

Source: the model card (arXiv 2508.10925) and openai/gpt-oss, gpt_oss/torch/model.py.
"""

import torch
from torch import Tensor, nn

from rose.layers.attention import Attention
from rose.layers.embedding import Embedding, unembed
from rose.layers.forward_batch import AttentionSpec, ForwardBatch
from rose.layers.linear import Linear
from rose.layers.moe import MoE
from rose.layers.norm import RMSNorm
from rose.layers.parameter import ShardSpec
from rose.layers.quant import QuantMethod, Unquantized
from rose.layers.rope import RotaryEmbedding
from rose.models.gpt_oss.config import GptOssConfig


class GptOssAttention(nn.Module):
    """Fused query, key and value projection with bias; rotation; attention with sinks; output projection with bias."""

    def __init__(self, config: GptOssConfig, layer_index: int, rotary: RotaryEmbedding, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.head_counts = (config.num_q_heads, config.num_kv_heads, config.num_kv_heads)
        rows = tuple(num_heads * config.head_dim for num_heads in self.head_counts)
        quant = Unquantized()
        self.qkv = Linear(
            config.hidden_size,
            sum(rows),
            bias=True,
            dtype=dtype,
            quant=quant,
            shard=ShardSpec(dim=0, sections=rows),
        )
        self.rotary = rotary
        self.attention = Attention(
            layer_index, num_q_heads=config.num_q_heads, spec=config.attention_specs[layer_index]
        )
        self.out = Linear(rows[0], config.hidden_size, bias=True, dtype=dtype, quant=quant, shard=ShardSpec(dim=1))

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """[num_tokens, hidden_size] -> the same shape."""
        heads = self.qkv(x).unflatten(-1, (-1, self.head_dim))  # [num_tokens, num_q_heads + 2 num_kv_heads, head_dim]
        query, key, value = heads.split(self.head_counts, dim=1)
        self.rotary(query, key, batch.positions)
        attended: Tensor = self.attention(query, key, value, batch)
        projected: Tensor = self.out(attended.flatten(1))
        return projected


class GptOssBlock(nn.Module):
    """Attention, then experts, each on the normalized residual stream and added back to it."""

    def __init__(
        self,
        config: GptOssConfig,
        layer_index: int,
        rotary: RotaryEmbedding,
        *,
        dtype: torch.dtype,
        expert_quant: QuantMethod,
    ) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.attn = GptOssAttention(config, layer_index, rotary, dtype=dtype)
        self.mlp_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = MoE(config.moe, dtype=dtype, expert_quant=expert_quant)

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """[num_tokens, hidden_size] -> the same shape."""
        x = x + self.attn(self.attn_norm(x), batch)
        residual: Tensor = x + self.mlp(self.mlp_norm(x))
        return residual


class GptOssForCausalLM(nn.Module):
    """The whole model; implements `rose.models.base.CausalLM`.

    Built without memory, on the meta device; `rose.weights.loader` gives it memory and values. dtype: of activations,
    KV cache and every weight but the float32 norms and sinks, and the experts where `expert_quant` says otherwise.
    """

    def __init__(self, config: GptOssConfig, *, dtype: torch.dtype, expert_quant: QuantMethod) -> None:
        super().__init__()
        self.config = config
        self._dtype = dtype
        self.embedding = Embedding(config.vocab_size, config.hidden_size, dtype=dtype)
        rotary = RotaryEmbedding(config.rope, head_dim=config.head_dim, max_position=config.max_position)
        self.rotary = rotary
        self.blocks = nn.ModuleList(
            GptOssBlock(config, layer_index, rotary, dtype=dtype, expert_quant=expert_quant)
            for layer_index in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        # A tied model has one table for both ends.
        self.unembedding = (
            self.embedding
            if config.tie_word_embeddings
            else Embedding(config.vocab_size, config.hidden_size, dtype=dtype)
        )

    @property
    def vocab_size(self) -> int:
        """Number of token ids, the padding of the vocabulary included."""
        return self.config.vocab_size

    @property
    def max_position(self) -> int:
        """The longest context."""
        return self.config.max_position

    @property
    def attention_specs(self) -> tuple[AttentionSpec, ...]:
        """What each layer keeps in the KV cache."""
        return self.config.attention_specs

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """What the checkpoint's config says ends a text."""
        return self.config.eos_token_ids

    @property
    def num_parameters(self) -> int:
        """Number of weights, in elements however they are stored."""
        return self.config.num_parameters

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of activations and KV cache."""
        return self._dtype

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Write the batch's keys and values, return the last hidden states, [num_tokens, hidden_size]."""
        x: Tensor = self.embedding(batch.token_ids)
        for block in self.blocks:
            x = block(x, batch)
        normalized: Tensor = self.norm(x)
        return normalized

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits of the given rows: [n, hidden_size] -> [n, vocab_size] float32."""
        return unembed(hidden, self.unembedding.weight)
