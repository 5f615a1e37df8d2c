"""gpt-oss: a pre-norm transformer whose layers alternate between sliding and full attention, with experts throughout.

Source: the model card (arXiv 2508.10925) and openai/gpt-oss, gpt_oss/torch/model.py.
"""

import torch
from torch import Tensor, nn

from rose.kernels.moe_combine.op import WeightedRows
from rose.kernels.rmsnorm.op import Normalized
from rose.layers.attention import Attention
from rose.layers.embedding import Embedding, Unembedding
from rose.layers.forward_batch import AttentionSpec, ForwardBatch
from rose.layers.linear import Linear
from rose.layers.moe import MoE
from rose.layers.norm import RMSNorm
from rose.layers.parameter import ShardSpec
from rose.layers.quant import QuantMethod
from rose.layers.rope import RotaryEmbedding
from rose.models.gpt_oss.config import GptOssConfig
from rose.numerics.fp8 import Fp8RowTensor


class GptOssAttention(nn.Module):
    """Fused query, key and value projection with bias; rotation; attention with sinks; output projection with bias."""

    def __init__(
        self,
        config: GptOssConfig,
        layer_index: int,
        rotary: RotaryEmbedding,
        *,
        dtype: torch.dtype,
        quant: QuantMethod,
    ) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.head_counts = (config.num_q_heads, config.num_kv_heads, config.num_kv_heads)
        rows = tuple(num_heads * config.head_dim for num_heads in self.head_counts)
        self.qkv = Linear(
            config.hidden_size,
            sum(rows),
            bias=True,
            dtype=dtype,
            quant=quant,
            shard=ShardSpec(dim=0, sections=rows, unit=config.head_dim),
        )
        self.rotary = rotary
        self.attention = Attention(
            layer_index, num_q_heads=config.num_q_heads, spec=config.attention_specs[layer_index]
        )
        self.out = Linear(rows[0], config.hidden_size, bias=True, dtype=dtype, quant=quant, shard=ShardSpec(dim=1))

    def forward(self, x: Tensor | Fp8RowTensor, batch: ForwardBatch) -> Tensor:
        """[num_tokens, hidden_size] -> the same shape. x: rounded to FP8 if `qkv` takes it so, or not."""
        heads = self.qkv(x).unflatten(-1, (-1, self.head_dim))  # [num_tokens, num_q_heads + 2 num_kv_heads, head_dim]
        query, key, value = heads.split(self.head_counts, dim=1)
        cache = batch.layers[self.attention.layer_index]
        self.rotary(query, key, value, batch.positions, cache, query_scale=self.attention.query_scale)
        attended: Tensor = self.attention(query, batch)
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
        dense_quant: QuantMethod,
    ) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.attn = GptOssAttention(config, layer_index, rotary, dtype=dtype, quant=dense_quant)
        self.mlp_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = MoE(config.moe, dtype=dtype, expert_quant=expert_quant)

    def normalize(self, x: Tensor, add: WeightedRows | None) -> Tensor | Fp8RowTensor:
        """What `forward` begins with. add: what the block before left to add to the residual stream x, in place.

        Each sum is taken together with the normalization that follows it, and so is the rounding to FP8 where what
        comes next takes that. Not part of `forward`, whose caller would keep `add` in memory to its end.
        """
        normalized: Normalized = self.attn_norm(x, add, form="rounded" if self.attn.qkv.takes_rounded(x) else "plain")
        return normalized.tensor if normalized.rounded is None else normalized.rounded

    def forward(self, x: Tensor, normalized: Tensor | Fp8RowTensor, batch: ForwardBatch) -> WeightedRows:
        """Advance the residual stream x, [num_tokens, hidden_size], in place; returns what is still to be added to it.

        normalized: x as `normalize` gives it.
        """
        attended = self.attn(normalized, batch)
        mlp_input: Normalized = self.mlp_norm(x, attended, form="both" if self.mlp.takes_rounded(x) else "plain")
        expert_terms: WeightedRows = self.mlp(mlp_input.tensor, mlp_input.rounded)
        return expert_terms


class GptOssForCausalLM(nn.Module):
    """The whole model; implements `rose.models.base.CausalLM`.

    Built without memory, on the meta device; `rose.weights.loader` gives it memory and values. dtype: of activations,
    KV cache and every weight but the float32 norms and sinks, and those that a quant method stores otherwise:
    expert_quant for experts, dense_quant for the projections of attention and for an unembedding of its own.
    """

    def __init__(
        self, config: GptOssConfig, *, dtype: torch.dtype, expert_quant: QuantMethod, dense_quant: QuantMethod
    ) -> None:
        super().__init__()
        self.config = config
        self._dtype = dtype
        self.embedding = Embedding(config.vocab_size, config.hidden_size, dtype=dtype)
        rotary = RotaryEmbedding(config.rope, head_dim=config.head_dim, max_position=config.max_position)
        self.rotary = rotary
        self.blocks = nn.ModuleList(
            GptOssBlock(config, layer_index, rotary, dtype=dtype, expert_quant=expert_quant, dense_quant=dense_quant)
            for layer_index in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        # A tied model has one table for both ends.
        self.unembedding = (
            None
            if config.tie_word_embeddings
            else Unembedding(config.vocab_size, config.hidden_size, dtype=dtype, quant=dense_quant)
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
        add: WeightedRows | None = None
        for block in self.blocks:
            assert isinstance(block, GptOssBlock)
            normalized = block.normalize(x, add)
            add = None  # these may be the largest tensors of a step
            add = block(x, normalized, batch)
        hidden: Tensor = self.norm(x, add).tensor
        return hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits of the given rows: [n, hidden_size] -> [n, vocab_size] float32."""
        if self.unembedding is None:
            return self.embedding.unembed(hidden)
        logits: Tensor = self.unembedding(hidden)
        return logits
