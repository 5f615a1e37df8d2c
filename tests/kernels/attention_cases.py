"""Ragged batches for paged attention, with blocks scattered and everything unused poisoned, and a plain oracle."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rose.kernels.paged_attention.op import paged_attention


@dataclass(frozen=True)
class Case:
    """query_lens and kv_lens of each request, and sizes. `why` says what the case is there for."""

    why: str
    requests: tuple[tuple[int, int], ...]  # (query_len, kv_len)
    sliding_window: int | None = None
    block_size: int = 4
    num_q_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 8


@dataclass
class Inputs:
    case: Case
    query: Tensor
    keys: list[Tensor]  # of each request, [kv_len, num_kv_heads, head_dim]
    values: list[Tensor]
    key_cache: Tensor
    value_cache: Tensor
    block_table: Tensor
    sinks: Tensor

    def run(self, **changes) -> Tensor:
        query_lens = tuple(q for q, _ in self.case.requests)
        kv_lens = tuple(kv for _, kv in self.case.requests)
        arguments = {
            "query": self.query,
            "key_cache": self.key_cache,
            "value_cache": self.value_cache,
            "block_table": self.block_table,
            "cu_seqlens_q": torch.tensor([0, *query_lens]).cumsum(0).int(),
            "seq_lens": torch.tensor(kv_lens, dtype=torch.int32),
            "max_query_len": max(query_lens, default=0),
            "max_kv_len": max(kv_lens, default=0),
            "sinks": self.sinks,
            "scale": self.case.head_dim**-0.5,
            "sliding_window": self.case.sliding_window,
        } | changes
        return paged_attention(**arguments)


def make_inputs(case: Case, seed: int = 0, dtype: torch.dtype = torch.float32) -> Inputs:
    """Random inputs. A slot is NaN unless it holds a position that some query of the batch may see."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(dtype)

    max_blocks = max([math.ceil(kv / case.block_size) for _, kv in case.requests], default=0) + 1
    num_blocks = max(1, len(case.requests) * max_blocks) + 3
    cache_shape = (num_blocks, case.block_size, case.num_kv_heads, case.head_dim)
    key_cache, value_cache = (
        torch.full(cache_shape, math.nan, dtype=dtype),
        torch.full(cache_shape, math.nan, dtype=dtype),
    )
    scattered = torch.randperm(num_blocks, generator=generator)
    block_table = scattered[: len(case.requests) * max_blocks].int().view(len(case.requests), max_blocks)
    keys, values = [], []
    for request, (query_len, kv_len) in enumerate(case.requests):
        key, value = (normal(kv_len, case.num_kv_heads, case.head_dim) for _ in range(2))
        first_seen = 0 if case.sliding_window is None else max(0, kv_len - query_len - case.sliding_window + 1)
        for position in range(first_seen, kv_len):
            block = block_table[request, position // case.block_size]
            key_cache[block, position % case.block_size] = key[position]
            value_cache[block, position % case.block_size] = value[position]
        # Entries nobody may look at name no block at all.
        block_table[request, : first_seen // case.block_size] = 1 << 30
        block_table[request, math.ceil(kv_len / case.block_size) :] = -1
        keys.append(key)
        values.append(value)
    query = normal(sum(q for q, _ in case.requests), case.num_q_heads, case.head_dim)
    sinks = torch.randn(case.num_q_heads, generator=generator) * 1.5
    return Inputs(case, query, keys, values, key_cache, value_cache, block_table, sinks)


def oracle(inputs: Inputs) -> Tensor:
    """One query, one head at a time, in float64, with the sink as an extra column of a plain softmax."""
    case = inputs.case
    group = case.num_q_heads // case.num_kv_heads
    out = torch.empty(inputs.query.shape, dtype=torch.float64)
    row = 0
    for (query_len, kv_len), key, value in zip(case.requests, inputs.keys, inputs.values, strict=True):
        for position in range(kv_len - query_len, kv_len):
            start = 0 if case.sliding_window is None else max(0, position - case.sliding_window + 1)
            for head in range(case.num_q_heads):
                seen = slice(start, position + 1)
                scores = key[seen, head // group].double() @ inputs.query[row, head].double() * case.head_dim**-0.5
                probabilities = torch.cat([scores, inputs.sinks[head : head + 1].double()]).softmax(0)[:-1]
                out[row, head] = probabilities @ value[seen, head // group].double()
            row += 1
    return out


CASES = [
    Case("a single token", ((1, 1),)),
    Case("one whole prompt", ((13, 13),)),
    Case("decode of one request, the way of a single user", ((1, 11),)),
    Case("the last chunk of a prompt", ((5, 17),)),
    Case("a length that fills its blocks exactly", ((8, 8), (1, 8))),
    Case("decode of a batch of very different lengths", ((1, 1), (1, 40), (1, 37), (1, 3), (1, 20))),
    Case("prefill, decode and chunks mixed", ((1, 9), (7, 7), (1, 30), (4, 21), (1, 2))),
    Case("a request without queries", ((0, 5), (3, 3), (0, 0), (1, 4))),
    Case("no tokens at all", ()),
    Case("window 1: the current token only", ((6, 9), (1, 5), (1, 7)), sliding_window=1),
    Case("window longer than every context", ((6, 9), (1, 5)), sliding_window=50),
    Case("lengths around the window", ((1, 7), (1, 8), (1, 9), (7, 7), (8, 8), (9, 9)), sliding_window=8),
    Case("window that is no multiple of the block", ((20, 33), (1, 33), (1, 18)), sliding_window=7),
    Case("prompt of several window chunks", ((200, 210),), sliding_window=8),
    Case("blocks of one slot", ((5, 9), (1, 6)), block_size=1),
    Case("blocks longer than the contexts", ((5, 9), (1, 6)), block_size=64),
    Case("every query head has its own kv head", ((5, 9), (1, 6)), num_q_heads=4, num_kv_heads=4),
    Case("one kv head for all", ((5, 9), (1, 6)), num_q_heads=5, num_kv_heads=1),
]
