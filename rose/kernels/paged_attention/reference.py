"""`paged_attention` in plain torch: memory stays bounded, and only positions that a query can see are read.

A request with several queries is cut into chunks of queries, each against one gathered range of positions. Requests
with a single query, which is what decoding gives, are gathered into padded rectangles, several requests at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# At most this many attention scores at a time: 8 MiB in float32, which stays in a cache; larger is slower.
_MAX_SCORES = 1 << 21
# At most this many gathered key elements in a rectangle of requests, 64 MiB in float32.
_MAX_GATHERED = 1 << 24
# Queries to a chunk under a sliding window, at least: each chunk also reads the window before it.
_MIN_WINDOW_CHUNK = 64


def paged_attention_reference(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    *,
    query_lens: tuple[int, ...],
    kv_lens: tuple[int, ...],
    sinks: Tensor,
    scale: float,
    sliding_window: int | None,
) -> Tensor:
    """See `op.py`."""
    out = query.new_empty(query.shape)
    caches = (key_cache, value_cache)
    single: list[_SingleQuery] = []
    row = 0
    for request, (num_queries, kv_len) in enumerate(zip(query_lens, kv_lens, strict=True)):
        if num_queries == 1:
            start = 0 if sliding_window is None else max(0, kv_len - sliding_window)
            single.append(_SingleQuery(row, request, start, kv_len))
        elif num_queries > 1:
            rows = slice(row, row + num_queries)
            out[rows] = _attend_request(
                query[rows], *caches, block_table[request], kv_len, sinks, scale, sliding_window
            )
        row += num_queries
    for rectangle in _rectangles(single, elements_per_position=key_cache.shape[2] * key_cache.shape[3]):
        _attend_rectangle(rectangle, query, *caches, block_table, sinks, scale, out)
    return out


def _attend_request(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    blocks: Tensor,
    kv_len: int,
    sinks: Tensor,
    scale: float,
    sliding_window: int | None,
) -> Tensor:
    """Attention of one request's queries, [num_queries, num_q_heads, head_dim], the last of its positions."""
    num_queries, num_q_heads, _ = query.shape
    out = query.new_empty(query.shape)
    first_position = kv_len - num_queries
    if sliding_window is None:
        # Every chunk sees a prefix of the same positions, so they are gathered once.
        chunk_size = max(1, _MAX_SCORES // (num_q_heads * kv_len))
        all_keys, all_values = (_gather_range(cache, blocks, 0, kv_len).float() for cache in (key_cache, value_cache))
    else:
        chunk_size = max(_MIN_WINDOW_CHUNK, sliding_window)
    for begin in range(0, num_queries, chunk_size):
        chunk = query[begin : begin + chunk_size]
        low, high = first_position + begin, first_position + begin + len(chunk)  # positions of the queries
        if sliding_window is None:
            start, key, value = 0, all_keys[:high], all_values[:high]
        else:
            start = max(0, low - sliding_window + 1)
            key, value = (_gather_range(cache, blocks, start, high) for cache in (key_cache, value_cache))
        hidden = _hidden_positions(low, high, start, sliding_window, query.device)
        out[begin : begin + len(chunk)] = _attend(chunk[None], key[None], value[None], sinks, scale, hidden)[0]
    return out


def _gather_range(cache: Tensor, blocks: Tensor, start: int, end: int) -> Tensor:
    """Positions start ... end - 1 of a request, [end - start, num_kv_heads, head_dim]."""
    block_size = cache.shape[1]
    first = start // block_size
    used = blocks[first : (end + block_size - 1) // block_size]
    return cache.index_select(0, used).flatten(0, 1)[start - first * block_size : end - first * block_size]


def _hidden_positions(low: int, high: int, start: int, sliding_window: int | None, device: torch.device) -> Tensor:
    """Which of the last positions below `high` a query may not see, [high - low, some number of positions] bool.

    Without a window only the positions of the chunk itself can lie in a query's future, so the mask has just these.
    """
    queries = torch.arange(low, high, device=device).unsqueeze(1)
    if sliding_window is None:
        return torch.arange(low, high, device=device) > queries
    positions = torch.arange(start, high, device=device)
    return (positions > queries) | (positions <= queries - sliding_window)


@dataclass(frozen=True, slots=True)
class _SingleQuery:
    """A request with one query: its row in the batch, and the positions start ... end - 1 that the query sees."""

    row: int
    request: int
    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


def _rectangles(single: Sequence[_SingleQuery], *, elements_per_position: int) -> Iterator[list[_SingleQuery]]:
    """Groups of requests that are padded to a common length: of similar length, and not too large together."""
    group: list[_SingleQuery] = []
    for item in sorted(single, key=lambda item: item.length, reverse=True):
        longest = group[0].length if group else item.length
        too_large = (len(group) + 1) * longest * elements_per_position > _MAX_GATHERED
        if group and (too_large or 2 * item.length < longest):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def _attend_rectangle(
    group: list[_SingleQuery],
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    sinks: Tensor,
    scale: float,
    out: Tensor,
) -> None:
    """Attention of several requests with one query each, written into their rows of `out`."""
    if len(group) == 1:  # the way of a single user: whole blocks can be gathered, and nothing is hidden
        (item,) = group
        key, value = (
            _gather_range(cache, block_table[item.request], item.start, item.end) for cache in (key_cache, value_cache)
        )
        row = query[item.row : item.row + 1]
        out[item.row] = _attend(row[None], key[None], value[None], sinks, scale, None)[0, 0]
        return
    device, block_size = query.device, key_cache.shape[1]
    rows, requests, starts, ends = torch.tensor(
        [[item.row, item.request, item.start, item.end] for item in group], device=device
    ).unbind(1)
    offsets = torch.arange(group[0].length, device=device)
    positions = starts.unsqueeze(1) + offsets  # [group, longest]
    # Padding repeats the request's last position, so that no foreign block is read; it is hidden below.
    hidden = positions >= ends.unsqueeze(1)
    positions = torch.minimum(positions, ends.unsqueeze(1) - 1)
    blocks = block_table[requests.unsqueeze(1), positions // block_size]
    slots = blocks * block_size + positions % block_size  # [group, longest]
    key, value = (
        cache.flatten(0, 1).index_select(0, slots.flatten()).unflatten(0, slots.shape)
        for cache in (key_cache, value_cache)
    )
    result = _attend(query[rows].unsqueeze(1), key, value, sinks, scale, hidden.view(len(group), 1, 1, 1, -1))
    out[rows] = result.squeeze(1)


def _attend(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, scale: float, hidden: Tensor | None) -> Tensor:
    """Softmax attention with sinks.

    query: [batch, num_queries, num_q_heads, head_dim]. key, value: [batch, num_positions, num_kv_heads, head_dim].
    hidden: bool, broadcast over the last positions of scores [batch, num_kv_heads, group, num_queries, num_positions].
    Returns [batch, num_queries, num_q_heads, head_dim] of query's dtype.
    """
    batch, num_queries, num_q_heads, head_dim = query.shape
    num_kv_heads = key.shape[2]
    group = num_q_heads // num_kv_heads
    # Query heads kv * group ... kv * group + group - 1 share a kv head: they and their queries are rows of one product.
    rows = query.float().mul(scale).unflatten(2, (num_kv_heads, group)).permute(0, 2, 3, 1, 4)
    rows = rows.reshape(batch, num_kv_heads, group * num_queries, head_dim)
    scores = rows @ key.float().permute(0, 2, 3, 1)  # [batch, num_kv_heads, group * num_queries, num_positions] f32
    if hidden is not None:
        by_query = scores.unflatten(2, (group, num_queries))
        by_query[..., by_query.shape[-1] - hidden.shape[-1] :].masked_fill_(hidden, -torch.inf)
    sink = sinks.view(num_kv_heads, group, 1).expand(-1, -1, num_queries).reshape(num_kv_heads, -1, 1)
    maximum = torch.maximum(scores.amax(-1, keepdim=True), sink)
    weights = scores.sub_(maximum).exp_()
    denominator = weights.sum(-1, keepdim=True) + (sink - maximum).exp()
    result: Tensor = (weights @ value.float().permute(0, 2, 1, 3)).div_(denominator)
    result = result.unflatten(2, (group, num_queries)).permute(0, 3, 1, 2, 4)
    return result.reshape(batch, num_queries, num_q_heads, head_dim).to(query.dtype)
