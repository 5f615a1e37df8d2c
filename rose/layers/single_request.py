"""A paged KV cache for one request on its own: the batch maker of tools and tests that need no engine."""

import torch
from torch import Tensor

from rose.layers.forward_batch import AttentionSpec, ForwardBatch, LayerKV


class SingleRequestCache:
    """KV blocks of one request, in order, for up to `max_tokens` tokens; it grows by one `batch` after the other.

    Memory: 2 * layers * max_tokens * num_kv_heads * head_dim elements; sliding-window layers keep everything as well.
    """

    def __init__(
        self,
        specs: tuple[AttentionSpec, ...],
        max_tokens: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        block_size: int = 16,
    ) -> None:
        num_blocks = (max_tokens + block_size - 1) // block_size
        self.num_tokens = 0
        self._max_tokens = max_tokens
        self._device = device
        self._block_table = torch.arange(num_blocks, dtype=torch.int32, device=device).unsqueeze(0)
        self._caches: list[tuple[Tensor, Tensor]] = []
        for spec in specs:
            shape = (num_blocks, block_size, spec.num_kv_heads, spec.head_dim)
            # Zeros: a fast kernel may multiply what was never written by zero, and 0 x NaN is NaN.
            key, value = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
            self._caches.append((key, value))

    def batch(self, token_ids: list[int]) -> ForwardBatch:
        """The batch that computes the request's next tokens. Raises ValueError past max_tokens."""
        start, end = self.num_tokens, self.num_tokens + len(token_ids)
        if end > self._max_tokens:
            raise ValueError(f"{end} tokens do not fit a cache for {self._max_tokens}")
        self.num_tokens = end
        # The block table is the identity, so a token's slot is its position.
        positions = torch.arange(start, end, device=self._device)
        return ForwardBatch(
            token_ids=torch.tensor(token_ids, dtype=torch.int64, device=self._device),
            positions=positions,
            cu_seqlens_q=torch.tensor([0, len(token_ids)], dtype=torch.int32, device=self._device),
            seq_lens=torch.tensor([end], dtype=torch.int32, device=self._device),
            max_query_len=len(token_ids),
            max_kv_len=end,
            layers=tuple(LayerKV(key, value, self._block_table, positions) for key, value in self._caches),
        )
