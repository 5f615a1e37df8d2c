"""`sample_tokens` in Triton: the logits are read once, in chunks over the whole GPU, and then one chunk of each row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_CHUNK = 4096


@triton.jit
def _chunk_kernel(
    logits_ptr, temperatures_ptr, best_ptr, best_id_ptr, sum_ptr, vocab_size, num_chunks, CHUNK: tl.constexpr
):
    """Of one chunk: its best logit, where that is, and the sum of exp((logit - best) / T)."""
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    i = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits_ptr + row * vocab_size + i, mask=i < vocab_size, other=float("-inf"))
    best, best_id = tl.max(x, 0, return_indices=True, return_indices_tie_break_left=True)
    temperature = tl.load(temperatures_ptr + row)
    # Infinite or no numbers must not meet: a chunk of -inf has no mass, and one of inf or NaN no meaning.
    base = tl.where((best > float("-inf")) & (best < float("inf")), best, 0.0)
    shifted = tl.minimum(tl.where(x < float("inf"), x, float("-inf")) - base, 0.0)
    total = tl.sum(tl.exp(shifted / tl.where(temperature > 0.0, temperature, 1.0)), 0)
    num_nan = tl.sum((x != x).to(tl.int32), 0)
    at = row * num_chunks + chunk
    tl.store(best_ptr + at, tl.where(num_nan > 0, float("inf"), best))
    # Of NaN the maximum may be any place, also one behind the end.
    tl.store(best_id_ptr + at, tl.minimum(chunk * CHUNK + best_id, vocab_size - 1))
    tl.store(sum_ptr + at, total)


# The number of rows follows the batch: compile for none in particular.
@triton.jit(do_not_specialize=["num_rows"])
def _choose_kernel(
    logits_ptr, temperatures_ptr, uniforms_ptr, best_ptr, best_id_ptr, sum_ptr, out_ptr, vocab_size, num_chunks,
    num_rows, CHUNK: tl.constexpr, PADDED_CHUNKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, PADDED_CHUNKS)
    exists = c < num_chunks
    bests = tl.load(best_ptr + row * num_chunks + c, mask=exists, other=float("-inf"))
    best, best_chunk = tl.max(bests, 0, return_indices=True, return_indices_tie_break_left=True)
    is_valid = (best > float("-inf")) & (best < float("inf"))
    temperature = tl.load(temperatures_ptr + row)
    token = tl.load(best_id_ptr + row * num_chunks + best_chunk)
    if (temperature > 0.0) & is_valid:
        sums = tl.load(sum_ptr + row * num_chunks + c, mask=exists, other=0.0).to(tl.float64)
        masses = sums * tl.exp(((bests - best) / temperature).to(tl.float64))
        ends = tl.cumsum(masses, 0)
        target = tl.load(uniforms_ptr + row) * tl.sum(masses, 0)
        # The chunk in which the sum passes the target; one with mass, whatever rounding does.
        last = tl.max(tl.where(masses > 0.0, c, 0), 0)
        chunk = tl.minimum(tl.sum((exists & (ends <= target)).to(tl.int32), 0), last)
        before = tl.sum(tl.where(c < chunk, masses, 0.0), 0)
        i = chunk * CHUNK + tl.arange(0, CHUNK)
        inside = i < vocab_size
        x = tl.load(logits_ptr + row * vocab_size + i, mask=inside, other=float("-inf"))
        mass = tl.exp(((x - best) / temperature).to(tl.float64))
        passed = before + tl.cumsum(mass, 0) <= target
        last = tl.max(tl.where(mass > 0.0, i, 0), 0)
        token = tl.minimum(chunk * CHUNK + tl.sum(passed.to(tl.int32), 0), last)
    tl.store(out_ptr + row, token.to(tl.int64))
    tl.store(out_ptr + num_rows + row, is_valid.to(tl.int64))


def sample_tokens_triton(logits: Tensor, temperatures: Tensor, uniforms: Tensor, *, chunk: int = _CHUNK) -> Tensor:
    """See `op.py`. chunk: tokens that one program sums, a power of two."""
    num_rows, vocab_size = logits.shape
    num_chunks = triton.cdiv(vocab_size, chunk)
    best = torch.empty((num_rows, num_chunks), dtype=torch.float32, device=logits.device)
    best_ids = torch.empty((num_rows, num_chunks), dtype=torch.int32, device=logits.device)
    sums = torch.empty((num_rows, num_chunks), dtype=torch.float32, device=logits.device)
    out = torch.empty((2, num_rows), dtype=torch.int64, device=logits.device)
    _chunk_kernel[(num_chunks, num_rows)](
        logits, temperatures, best, best_ids, sums, vocab_size, num_chunks, chunk, num_warps=8
    )
    _choose_kernel[(num_rows,)](
        logits, temperatures, uniforms, best, best_ids, sums, out, vocab_size, num_chunks, num_rows,
        chunk, triton.next_power_of_2(num_chunks), num_warps=8,
    )  # fmt: skip
    return out
