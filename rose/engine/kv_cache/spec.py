"""What the KV cache must hold: the model's layers in groups, and how many blocks a request needs in each.

Layers with the same attention window form a group, and every group has its own block table. All groups take their
blocks from one pool. The memory is `num_tensors` tensors of [2, num_blocks, block_size, num_kv_heads, head_dim], and
layer j of each group uses tensor j, so a block id belongs to one group at a time and holds `block_size` tokens of all
its layers:

                 tensor 0   tensor 1   ...
    full         layer 1    layer 3    ...     block 7 -> a full group's tokens in every tensor
    window 128   layer 0    layer 2    ...     block 8 -> a sliding group's tokens in every tensor

A group with fewer layers than `num_tensors` leaves the last tensors unused in its blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rose.errors import UnsupportedModel

if TYPE_CHECKING:
    from rose.layers.forward_batch import AttentionSpec


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share a block table. `sliding_window` counts the current token; None sees everything."""

    sliding_window: int | None
    layers: tuple[int, ...]

    def first_visible(self, position: int) -> int:
        """The first position that a query at `position` sees."""
        return 0 if self.sliding_window is None else max(0, position - self.sliding_window + 1)


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """The groups, and the shape of one block. Sizes count tokens unless a name says bytes."""

    groups: tuple[KVGroup, ...]
    block_size: int
    num_kv_heads: int
    head_dim: int

    @classmethod
    def from_layers(cls, layers: Sequence["AttentionSpec"], block_size: int) -> "KVCacheSpec":
        """Group a model's layers by window, full attention first. Raises `UnsupportedModel` if their shapes differ."""
        shapes = {(layer.num_kv_heads, layer.head_dim) for layer in layers}
        if len(shapes) != 1:
            raise UnsupportedModel(
                f"all attention layers must share one (num_kv_heads, head_dim), not {sorted(shapes)}"
            )
        ((num_kv_heads, head_dim),) = shapes
        windows = sorted({layer.sliding_window for layer in layers}, key=lambda window: window or 0)
        groups = tuple(
            KVGroup(window, tuple(i for i, layer in enumerate(layers) if layer.sliding_window == window))
            for window in windows
        )
        return cls(groups, block_size, num_kv_heads, head_dim)

    @property
    def num_tensors(self) -> int:
        """Layers of the largest group."""
        return max(len(group.layers) for group in self.groups)

    def block_bytes(self, dtype_bytes: int) -> int:
        """Memory of one block over all tensors, keys and values."""
        return self.num_tensors * 2 * self.block_size * self.num_kv_heads * self.head_dim * dtype_bytes

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` fill in one group, before any leave a window."""
        return -(-num_tokens // self.block_size)

    def min_blocks(self, num_tokens: int) -> int:
        """Blocks of all groups that a request of `num_tokens` needs at its widest, computed token by token."""
        return sum(self._min_group_blocks(group, num_tokens) for group in self.groups)

    def _min_group_blocks(self, group: KVGroup, num_tokens: int) -> int:
        everything = self.blocks_for(num_tokens)
        if group.sliding_window is None:
            return everything
        # A window that does not start on a block's edge touches one block more.
        return min(everything, self.blocks_for(group.sliding_window - 1) + 1)

    def max_tokens(self, num_blocks: int) -> int:
        """The longest request that `num_blocks` can hold alone: the inverse of `min_blocks`."""
        low, high = 0, (num_blocks + 1) * self.block_size + max(group.sliding_window or 0 for group in self.groups)
        if self.min_blocks(high) <= num_blocks:  # only windows: the blocks needed stop growing
            return 1 << 62
        while low < high:
            middle = (low + high + 1) // 2
            if self.min_blocks(middle) <= num_blocks:
                low = middle
            else:
                high = middle - 1
        return low
