"""What one forward pass works on: a ragged batch of requests and the KV blocks they use.

Everything a layer needs comes in this argument; layers read no globals and know no scheduler.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What one attention layer keeps in the KV cache. `sliding_window` counts the current token; None is full."""

    num_kv_heads: int
    head_dim: int
    sliding_window: int | None


@dataclass(frozen=True, slots=True)
class LayerKV:
    """One layer's paged KV cache and where this batch's tokens live in it.

    key, value: [num_blocks, block_size, num_kv_heads, head_dim].
    block_table: [num_requests, max_num_blocks] int32; entry j holds positions j*block_size ... of the request. Entries
    whose positions have left the layer's window, or past the request's end, may name any block: never read them.
    slot_mapping: [num_tokens] int64; `block * block_size + offset` where each token's key and value are written.
    """

    key: Tensor
    value: Tensor
    block_table: Tensor
    slot_mapping: Tensor


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """A ragged batch: the tokens of request i are rows cu_seqlens_q[i] ... cu_seqlens_q[i+1] - 1.

    token_ids: [num_tokens] int64. positions: [num_tokens] int64, each request's own, from 0.
    cu_seqlens_q: [num_requests + 1] int32. seq_lens: [num_requests] int32: tokens of the request in the cache once
    this batch's are written (so its queries are the last ones below seq_lens[i]).
    max_query_len, max_kv_len: what no request exceeds, on the host, for the choice of launches; 1 for max_query_len
    means one token for each request. The bounds of a captured batch hold for all its replays.
    layers: one entry per model layer, in order.
    """

    token_ids: Tensor
    positions: Tensor
    cu_seqlens_q: Tensor
    seq_lens: Tensor
    max_query_len: int
    max_kv_len: int
    layers: tuple[LayerKV, ...]
