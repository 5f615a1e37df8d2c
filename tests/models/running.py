"""Running a model over a paged cache in whatever pieces a test wants."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rose.layers.forward_batch import ForwardBatch, LayerKV
from rose.models.base import CausalLM


class PagedRequests:
    """Several requests with scattered blocks in one cache, as an engine would lay them out.

    Every slot starts as NaN, each layer has a block table of its own, and blocks of a sliding layer are taken away and
    poisoned once they have left the window.
    """

    def __init__(self, model: CausalLM, num_requests: int, max_tokens: int, *, block_size: int = 4) -> None:
        self.model = model
        self.block_size = block_size
        self.lengths = [0] * num_requests
        blocks_each = math.ceil(max_tokens / block_size)
        num_blocks = num_requests * blocks_each + 2
        self.tables: list[Tensor] = []
        self.caches: list[tuple[Tensor, Tensor]] = []
        for layer, spec in enumerate(model.attention_specs):
            order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(layer))
            table = order[: num_requests * blocks_each].int().view(num_requests, blocks_each).contiguous()
            self.tables.append(table.to(model.device))
            shape = (num_blocks, block_size, spec.num_kv_heads, spec.head_dim)
            key, value = (torch.full(shape, math.nan, dtype=model.dtype, device=model.device) for _ in range(2))
            self.caches.append((key, value))

    def step(self, work: Sequence[tuple[int, list[int]]]) -> list[Tensor]:
        """Compute the next tokens of some requests, (request, token ids); the logits of each, [n, vocab_size]."""
        device = self.model.device
        requests = [request for request, _ in work]
        query_lens = [len(ids) for _, ids in work]
        starts = [self.lengths[request] for request in requests]
        ends = [start + length for start, length in zip(starts, query_lens, strict=True)]
        positions = torch.cat([torch.arange(s, e) for s, e in zip(starts, ends, strict=True)])
        row_request = torch.repeat_interleave(torch.tensor(requests), torch.tensor(query_lens))
        layers = []
        for table, (key, value) in zip(self.tables, self.caches, strict=True):
            blocks = table.cpu()[row_request, positions // self.block_size].long()
            slots = blocks * self.block_size + positions % self.block_size
            layers.append(LayerKV(key, value, table[requests], slots.to(device)))
        batch = ForwardBatch(
            token_ids=torch.tensor([token for _, ids in work for token in ids], device=device),
            positions=positions.to(device),
            cu_seqlens_q=torch.tensor([0, *query_lens]).cumsum(0).int().to(device),
            seq_lens=torch.tensor(ends, dtype=torch.int32, device=device),
            max_query_len=max(query_lens),
            max_kv_len=max(ends),
            layers=tuple(layers),
        )
        logits = self.model.compute_logits(self.model.forward(batch))
        for request, end in zip(requests, ends, strict=True):
            self.lengths[request] = end
            self._free_what_left_the_window(request, end)
        return list(logits.split(query_lens))

    def _free_what_left_the_window(self, request: int, length: int) -> None:
        for spec, table, caches in zip(self.model.attention_specs, self.tables, self.caches, strict=True):
            if spec.sliding_window is None:
                continue
            first_needed = max(0, length + 1 - spec.sliding_window)
            for index in range(first_needed // self.block_size):
                block = int(table[request, index])
                if block >= 0:
                    for cache in caches:
                        cache[block] = math.nan
                table[request, index] = -1


def run_in_chunks(model: CausalLM, token_ids: list[int], chunk_sizes: Sequence[int], *, block_size: int = 4) -> Tensor:
    """Logits of one request computed in chunks of these sizes, the last one repeated: [num_tokens, vocab_size]."""
    requests = PagedRequests(model, 1, len(token_ids), block_size=block_size)
    sizes, parts, start = list(chunk_sizes), [], 0
    while start < len(token_ids):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        parts += requests.step([(0, token_ids[start : start + size])])
        start += size
    return torch.cat(parts)
