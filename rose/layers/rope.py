"""Rotary position embedding with YaRN's context extension."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rose.kernels.rope_kv_write.op import rope_kv_write_
from rose.layers.forward_batch import LayerKV


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """How positions turn into angles.

    theta: base of the frequencies. factor: by how much YaRN stretches the context; 1 is plain rotary embedding.
    original_context: positions the model was trained on before stretching. beta_fast, beta_slow: rotations within
    original_context above which a frequency is left alone, and below which it is divided by factor. truncate: round
    the two dimensions where that happens to whole numbers, outwards. concentration: multiplies cosine and sine.
    """

    theta: float
    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    concentration: float


def yarn_concentration(factor: float) -> float:
    """YaRN's 0.1 ln(factor) + 1, its equation 22 as the factor of cosine and sine; 1 when nothing is stretched."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def inverse_frequencies(config: RopeConfig, head_dim: int) -> Tensor:
    """Angle per position of each pair of dimensions, [head_dim / 2] float32 on the CPU.

    Source: Peng et al., "YaRN", arXiv 2309.00071, section 3.2 ("NTK-by-parts").
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
    wavelengths = config.theta**exponents  # over 2 pi
    unchanged = 1.0 / wavelengths
    if config.factor <= 1:
        return unchanged
    stretched = 1.0 / (config.factor * wavelengths)

    def dimension(rotations: float) -> float:
        """The pair of dimensions, as a real number, that turns this often within the original context."""
        ratio = config.original_context / (rotations * 2 * math.pi)
        return head_dim * math.log(ratio) / (2 * math.log(config.theta))

    low, high = dimension(config.beta_fast), dimension(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a step, without dividing by zero
    pairs = torch.arange(head_dim // 2, dtype=torch.float32, device="cpu")
    stretch = ((pairs - low) / (high - low)).clamp(0, 1)  # 0 for fast pairs, 1 for slow ones
    return stretched * stretch + unchanged * (1 - stretch)


class RotaryEmbedding(nn.Module):
    """Rotates queries and keys by their positions, keys on their way into the cache. One object serves every layer.

    Angles are float32 products of position and frequency, as in the models' own implementations: at position 100 000
    these are up to 0.004 off, and the models were trained with that.
    """

    table: Tensor

    def __init__(self, config: RopeConfig, *, head_dim: int, max_position: int) -> None:
        super().__init__()
        self.config = config
        self.head_dim = head_dim
        self.max_position = max_position
        self.register_buffer("table", torch.empty(0, device="meta"), persistent=False)

    def after_load(self, device: torch.device) -> None:
        """Compute the table: cosines and sines of every position, [max_position, head_dim] float32 on `device`."""
        positions = torch.arange(self.max_position, dtype=torch.float32, device="cpu")
        angles = positions.unsqueeze(1) * inverse_frequencies(self.config, self.head_dim)
        table = torch.cat([angles.cos(), angles.sin()], dim=1).mul_(self.config.concentration)
        self.table = table.to(device)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, positions: Tensor, cache: LayerKV, *, query_scale: float = 1.0
    ) -> None:
        """Rotate the query in place and multiply it by query_scale; write the rotated key, and value, into the cache.

        query, key, value: [num_tokens, heads, head_dim]; positions: [num_tokens] int64.
        """
        rope_kv_write_(
            query,
            key,
            value,
            positions,
            self.table,
            cache.key,
            cache.value,
            cache.slot_mapping,
            query_scale=query_scale,
        )
