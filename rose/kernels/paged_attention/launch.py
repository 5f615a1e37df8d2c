"""Which backend attends, and with what launch: pure functions of shapes and hardware.

The numbers were measured on an H200; see docs/performance-log.md.
"""

import math
from dataclasses import dataclass

LN_2 = math.log(2.0)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What the choice depends on. max_query_len, max_kv_len: as in the op's contract."""

    num_requests: int
    max_query_len: int
    max_kv_len: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    sliding_window: int | None
    is_bf16: bool
    scores_in_log2: bool


def uses_cuda_prefill(shape: AttentionShape) -> bool:
    """Whether `prefill_sm90` applies: see its contract."""
    return (
        shape.max_query_len > 1
        and shape.is_bf16
        and shape.scores_in_log2
        and shape.head_dim == 64
        and shape.num_q_heads == 8 * shape.num_kv_heads
        and (128 % shape.block_size == 0 or shape.block_size % 128 == 0)
        and shape.block_size >= 8
    )


# What the keys and values that are worked on at a time may take of the L2 cache's 50 MB.
_L2_SHARE_BYTES = 32 << 20


def heads_together(shape: AttentionShape) -> int:
    """How many KV heads `prefill_sm90` works on at a time, a divisor of num_kv_heads.

    The more, the more evenly the work ends; but once their keys and values together exceed the L2 cache, each row tile
    reads them from memory again: 128000 tokens take 250 ms with all 8 heads at once and 223 one by one.
    """
    if shape.sliding_window is not None:
        return shape.num_kv_heads
    per_head = shape.max_kv_len * shape.head_dim * 2 * 2
    return max(
        n
        for n in range(1, shape.num_kv_heads + 1)
        if shape.num_kv_heads % n == 0 and (n == 1 or n * per_head <= _L2_SHARE_BYTES)
    )


@dataclass(frozen=True, slots=True)
class PrefillLaunch:
    """Tile of `prefill_triton`: tile_queries x tile_keys."""

    tile_queries: int
    tile_keys: int
    num_warps: int
    num_stages: int
    max_registers: int | None


def prefill_launch(shape: AttentionShape) -> PrefillLaunch:
    """A key tile lies within one block. Under a window small key tiles waste least; else the largest runs fastest."""
    if shape.sliding_window is not None:
        return PrefillLaunch(64, min(64, shape.block_size), 4, 3, None)
    if shape.head_dim <= 64 and shape.block_size >= 128:
        return PrefillLaunch(64, 128, 4, 2, 168)
    return PrefillLaunch(64, min(64, shape.block_size), 4, 2, None)


@dataclass(frozen=True, slots=True)
class DecodeLaunch:
    """num_splits: the most pieces that a request's positions are cut into; min_tiles: of keys, the least in a piece."""

    tile_keys: int
    num_splits: int
    min_tiles: int
    num_warps: int
    num_stages: int


def decode_launch(shape: AttentionShape, num_sms: int) -> DecodeLaunch:
    """Enough pieces to fill the GPU twice, but none shorter than four tiles: a short request leaves some to no one.

    Of the lengths, only the window counts: a graph's launch serves whatever they are when it is replayed.
    """
    tile_keys, min_tiles, num_warps, num_stages = 64, 4, 2, 5
    num_splits = -(-2 * num_sms // max(1, shape.num_requests * shape.num_kv_heads))
    if shape.sliding_window is not None:
        num_splits = min(num_splits, shape.sliding_window // (min_tiles * tile_keys))
    return DecodeLaunch(tile_keys, max(1, num_splits), min_tiles, num_warps, num_stages)
