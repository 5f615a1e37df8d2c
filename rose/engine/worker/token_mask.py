"""Which tokens grammars allow, as bits, and its effect on logits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_WORD_BITS = 32


def mask_words(vocab_size: int) -> int:
    """Words of 32 bits for one row of the vocabulary."""
    return -(-vocab_size // _WORD_BITS)


@dataclass(frozen=True, slots=True)
class TokenMask:
    """Bits of the allowed tokens for some rows of a batch; the other rows are free.

    rows: places in the batch. words: [len(rows), mask_words] int32, token t is bit t % 32 of word t // 32.
    """

    rows: list[int]
    words: npt.NDArray[np.int32]

    def apply(self, logits: Tensor, some: Sequence[int]) -> Tensor:
        """Logits with -inf for what is not allowed: of `rows[i] for i in some`, [len(some), vocab_size]."""
        words = torch.from_numpy(self.words[some]).to(logits.device, non_blocking=True)
        bits = torch.arange(_WORD_BITS, dtype=torch.int32, device=logits.device)
        allowed = ((words[:, :, None] >> bits) & 1).flatten(1)[:, : logits.shape[1]].bool()  # [n, vocab_size]
        return logits.masked_fill(~allowed, -torch.inf)
