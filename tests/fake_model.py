"""A model whose every logit depends on every token it may see, read back from the paged KV cache.

Its "activations" are integers below a prime, exact in float32. A layer writes its input and the token's position to
the cache, reads all that its attention spec lets it see through the block table, and hashes that, in order, into its
output. So a wrong block, slot, position, window, chunk boundary or prefix hit changes the tokens that come out, and
most of them fail at once: the position read back must be the one expected.

`expected_logits` computes the same function of a list of tokens, with no cache and no batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rose.errors import CheckpointError
from rose.layers.forward_batch import AttentionSpec, ForwardBatch, LayerKV

PRIME = 8191
CPU = torch.device("cpu")
FULL = AttentionSpec(num_kv_heads=1, head_dim=2, sliding_window=None)


def sliding(window: int) -> AttentionSpec:
    return AttentionSpec(num_kv_heads=1, head_dim=2, sliding_window=window)


@dataclass(frozen=True)
class FakeModel:
    """poison_token: a token that makes the logits after it NaN. crash_token: one that makes the step fail."""

    attention_specs: tuple[AttentionSpec, ...] = (FULL, sliding(5), FULL, sliding(5))
    vocab_size: int = 50
    max_position: int = 128
    eos_token_ids: tuple[int, ...] = ()
    num_parameters: int = 7
    device: torch.device = CPU
    dtype: torch.dtype = torch.float32
    poison_token: int | None = None
    crash_token: int | None = None

    def forward(self, batch: ForwardBatch) -> Tensor:
        if self.crash_token is not None and bool((batch.token_ids == self.crash_token).any()):
            raise RuntimeError("the crash token was computed")
        state = (batch.token_ids * 31 + 7) % PRIME  # [num_tokens]
        for index, (spec, kv) in enumerate(zip(self.attention_specs, batch.layers, strict=True)):
            _write(kv, state, batch.positions)
            seen = [
                read_visible(kv, row, position, spec.sliding_window)
                for row, (query_len, kv_len) in enumerate(
                    zip(batch.cu_seqlens_q.diff().tolist(), batch.seq_lens.tolist(), strict=True)
                )
                for position in range(kv_len - query_len, kv_len)
            ]
            state = torch.tensor([mix(index, values) for values in seen])
        hidden = state.to(self.dtype)[:, None]
        if self.poison_token is not None:
            hidden[batch.token_ids == self.poison_token] = float("nan")
        return hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Nearly uniform over [-3, 3], different for each state and token."""
        ids = torch.arange(self.vocab_size)
        state = hidden.float().nan_to_num().long()
        hashed = ((state + 1) * (ids * ids * 37 + ids * 1009 + 11)) % PRIME  # [n, vocab_size]
        return hashed.float() * (6.0 / PRIME) - 3.0 + 0.0 * hidden.float()


def _write(kv: LayerKV, state: Tensor, positions: Tensor) -> None:
    entries = torch.stack((state, positions), dim=-1).to(kv.key.dtype)[:, None]  # [num_tokens, 1, 2]
    kv.key.view(-1, 1, 2)[kv.slot_mapping] = entries
    kv.value.view(-1, 1, 2)[kv.slot_mapping] = -entries


def read_visible(kv: LayerKV, row: int, position: int, window: int | None) -> Tensor:
    """What the token at `position` sees, oldest first: [num_visible] int64.

    A request whose blocks are all the null block is padding: what it sees need not make sense.
    """
    if not kv.block_table[row].any():
        return torch.zeros(1, dtype=torch.int64)
    positions = torch.arange(0 if window is None else max(0, position - window + 1), position + 1)
    block_size = kv.key.shape[1]
    slots = kv.block_table[row, positions // block_size].long() * block_size + positions % block_size
    entries = kv.key.view(-1, 2)[slots].long()
    assert torch.equal(kv.value.view(-1, 2)[slots].long(), -entries), "keys and values were written apart"
    assert entries[:, 1].tolist() == positions.tolist(), f"row {row}: positions {entries[:, 1]}, not {positions}"
    return entries[:, 0]


def mix(layer: int, values: Tensor) -> int:
    """A hash of the values in their order, counted from the newest, so that it knows no positions."""
    weights = torch.arange(len(values), 0, -1) * (2 * layer + 3) + 5
    return int((values * weights).sum() + values[-1] * 17 + layer) % PRIME


def expected_logits(model: FakeModel, token_ids: list[int]) -> Tensor:
    """The logits after each token, [num_tokens, vocab_size], straight from the definition."""
    state = (torch.tensor(token_ids) * 31 + 7) % PRIME
    for index, spec in enumerate(model.attention_specs):
        window = spec.sliding_window or len(token_ids)
        state = torch.tensor([mix(index, state[max(0, i - window + 1) : i + 1]) for i in range(len(token_ids))])
    return model.compute_logits(state.to(model.dtype)[:, None])


def load(
    name: str | Path, *, device: torch.device, dtype: torch.dtype, progress: Callable[[int, int], None] | None
) -> FakeModel:
    """For `load_format="tests.fake_model:load"`. The name says how the model misbehaves, if at all."""
    if progress is not None:
        progress(0, 10)
        progress(10, 10)
    match str(name):
        case "missing":
            raise CheckpointError("missing/config.json: no such file")
        case "broken":
            raise RuntimeError("a bug in the loader")
        case "crash":
            return FakeModel(device=device, dtype=dtype, crash_token=49)
        case "long":
            return FakeModel(device=device, dtype=dtype, max_position=4096)
        case _:
            return FakeModel(device=device, dtype=dtype)
