"""Which rows each expert gets, in Triton: one launch for few tokens, else two, and no host synchronisation.

Rows are sorted by expert. An expert's first row is a multiple of UNIT; rows between its last and the next expert's
first belong to nobody.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

UNIT = 16  # rows that the grouped products divide experts into
MAX_TOKENS = 176  # rows of one of their tiles
_FEW_TOKENS = 64  # at most MAX_TOKENS
_ROUTE_TOKENS = 32
_PLACE_PAIRS = 256


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each (token, choice) has its row.

    rows: [num_tokens, k] int32. weights: [num_tokens, k] float32. token_of_row: [max_rows] int32, anything in rows that
    belong to nobody. token_tiles: [max_tiles, 4] int32, of each tile of tokens the expert, the expert's first tile, how
    many units of rows it has, and its first row. num_token_tiles: [1] int32, how many there are. next_tile: [2] int32
    zeros, counters for the two grouped products.
    """

    rows: Tensor
    weights: Tensor
    token_of_row: Tensor
    token_tiles: Tensor
    num_token_tiles: Tensor
    next_tile: Tensor


@triton.jit
def _choose(
    logits_ptr, token, exists, expert,
    NUM_EXPERTS: tl.constexpr, TOP: tl.constexpr, PADDED_TOP: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """The experts of some tokens, [TOKENS, PADDED_TOP], their weights, and how often each expert was chosen."""
    at = token[:, None] * NUM_EXPERTS + expert[None, :]
    logits = tl.load(logits_ptr + at, mask=exists[:, None], other=0.0).to(tl.float32)
    # Where there is NaN, lanes disagree about the greatest, and with fewer than TOP logits above -inf, a chosen expert
    # could be chosen again: counts and rows would contradict each other, and tokens get each other's rows.
    left = tl.where(logits > -3.4e38, logits, -3.4e38)
    slot = tl.arange(0, PADDED_TOP)[None, :]
    chosen = tl.full([TOKENS, PADDED_TOP], float("-inf"), tl.float32)
    ids = tl.zeros([TOKENS, PADDED_TOP], tl.int32)
    count = tl.zeros([NUM_EXPERTS], tl.int32)
    for j in tl.static_range(TOP):
        best, best_id = tl.max(left, 1, return_indices=True, return_indices_tie_break_left=True)
        chosen = tl.where(slot == j, best[:, None], chosen)
        ids = tl.where(slot == j, best_id[:, None], ids)
        hit = expert[None, :] == best_id[:, None]
        count += tl.sum((hit & exists[:, None]).to(tl.int32), 0)
        left = tl.where(hit, float("-inf"), left)
    weight = tl.exp(chosen - tl.max(chosen, 1)[:, None])
    weight = weight / tl.sum(weight, 1)[:, None]
    has_nan = tl.max((logits != logits).to(tl.int32), 1) > 0
    return ids, tl.where(has_nan[:, None], float("nan"), weight), count


# Counts that differ from step to step only bound masks: a kernel made for multiples of 16 would be no faster, and be
# compiled when the first step of another number is served.
@triton.jit(do_not_specialize=["num_tokens"])
def _route_kernel(
    logits_ptr, ids_ptr, weights_ptr, counts_ptr, num_tokens,
    NUM_EXPERTS: tl.constexpr, TOP: tl.constexpr, PADDED_TOP: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    exists = token < num_tokens
    expert = tl.arange(0, NUM_EXPERTS)
    ids, weight, count = _choose(logits_ptr, token, exists, expert, NUM_EXPERTS, TOP, PADDED_TOP, TOKENS)
    slot = tl.arange(0, PADDED_TOP)[None, :]
    out = token[:, None] * TOP + slot
    stored = exists[:, None] & (slot < TOP)
    tl.store(ids_ptr + out, ids, mask=stored)
    tl.store(weights_ptr + out, weight, mask=stored)
    tl.atomic_add(counts_ptr + expert, count, mask=count > 0)


@triton.jit(do_not_specialize=["num_pairs", "num_place_programs"])
def _place_kernel(
    ids_ptr, counts_ptr, cursor_ptr, rows_ptr, token_of_row_ptr, token_tiles_ptr, num_token_tiles_ptr,
    num_pairs, num_place_programs,
    NUM_EXPERTS: tl.constexpr, TOP: tl.constexpr, PAIRS: tl.constexpr, UNIT: tl.constexpr, MAX_TOKENS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """First programs: the rows of some pairs. Then one for each expert, which tells its tiles.

    Which of its expert's rows a pair gets is chance; no result depends on it.
    """
    program = tl.program_id(0)
    expert = tl.arange(0, NUM_EXPERTS)
    units = (tl.load(counts_ptr + expert) + UNIT - 1) // UNIT
    first_row = (tl.cumsum(units, 0) - units) * UNIT
    if program < num_place_programs:
        pair = program * PAIRS + tl.arange(0, PAIRS)
        exists = pair < num_pairs
        chosen = tl.load(ids_ptr + pair, mask=exists, other=0)
        hit = ((chosen[:, None] == expert[None, :]) & exists[:, None]).to(tl.int32)
        rank = tl.cumsum(hit, 0) - hit
        base = first_row + tl.atomic_add(cursor_ptr + expert, tl.sum(hit, 0))
        row = tl.sum(hit * (rank + base[None, :]), 1)
        tl.store(rows_ptr + pair, row, mask=exists)
        tl.store(token_of_row_ptr + row, pair // TOP, mask=exists)
    else:
        mine = program - num_place_programs
        tiles = (units * UNIT + MAX_TOKENS - 1) // MAX_TOKENS
        first_tile = tl.sum(tl.where(expert < mine, tiles, 0), 0)
        num_tiles = tl.sum(tl.where(expert == mine, tiles, 0), 0)
        my_units = tl.sum(tl.where(expert == mine, units, 0), 0)
        my_first_row = tl.sum(tl.where(expert == mine, first_row, 0), 0)
        for i in range(0, num_tiles, CHUNK):
            tile = i + tl.arange(0, CHUNK)
            to = token_tiles_ptr + (first_tile + tile) * 4
            zeros = tl.zeros([CHUNK], tl.int32)
            tl.store(to, mine + zeros, mask=tile < num_tiles)
            tl.store(to + 1, first_tile + zeros, mask=tile < num_tiles)
            tl.store(to + 2, my_units + zeros, mask=tile < num_tiles)
            tl.store(to + 3, my_first_row + zeros, mask=tile < num_tiles)
        if mine == 0:
            tl.store(num_token_tiles_ptr, tl.sum(tiles, 0))


@triton.jit(do_not_specialize=["num_tokens"])
def _place_few_kernel(
    logits_ptr, rows_ptr, weights_ptr, token_of_row_ptr, token_tiles_ptr, num_token_tiles_ptr, next_tile_ptr,
    num_tokens,
    NUM_EXPERTS: tl.constexpr, TOP: tl.constexpr, PADDED_TOP: tl.constexpr, TOKENS: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Everything in one program, for so few tokens that no expert has more than one tile."""
    token = tl.arange(0, TOKENS)
    exists = token < num_tokens
    expert = tl.arange(0, NUM_EXPERTS)
    ids, weight, count = _choose(logits_ptr, token, exists, expert, NUM_EXPERTS, TOP, PADDED_TOP, TOKENS)
    slot = tl.arange(0, PADDED_TOP)[None, :]
    tl.store(weights_ptr + token[:, None] * TOP + slot, weight, mask=exists[:, None] & (slot < TOP))
    units = (count + UNIT - 1) // UNIT
    first_row = (tl.cumsum(units, 0) - units) * UNIT
    used = (count > 0).to(tl.int32)
    tile = tl.cumsum(used, 0) - used
    to = token_tiles_ptr + tile * 4
    tl.store(to, expert, mask=used > 0)
    tl.store(to + 1, tile, mask=used > 0)
    tl.store(to + 2, units, mask=used > 0)
    tl.store(to + 3, first_row, mask=used > 0)
    tl.store(num_token_tiles_ptr, tl.sum(used, 0))
    tl.store(next_tile_ptr + tl.arange(0, 2), tl.zeros([2], tl.int32))
    next_row = first_row
    for j in tl.static_range(TOP):
        chosen = tl.sum(tl.where(slot == j, ids, 0), 1)
        hit = ((expert[None, :] == chosen[:, None]) & exists[:, None]).to(tl.int32)
        row = tl.sum(hit * (tl.cumsum(hit, 0) - hit + next_row[None, :]), 1)
        next_row += tl.sum(hit, 0)
        tl.store(rows_ptr + token * TOP + j, row, mask=exists)
        tl.store(token_of_row_ptr + row, token, mask=exists)


def place_triton(router_logits: Tensor, *, experts_per_token: int) -> Placement:
    """Choose experts as `moe_routing` does, and rows for them. num_experts is a power of two."""
    num_tokens, num_experts = router_logits.shape
    device, num_pairs = router_logits.device, num_tokens * experts_per_token
    chosen_experts = min(num_experts, num_pairs)
    max_rows, max_tiles = num_pairs + UNIT * chosen_experts, num_pairs // MAX_TOKENS + chosen_experts

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    rows, weights = empty(num_tokens, experts_per_token), empty(num_tokens, experts_per_token, dtype=torch.float32)
    token_of_row, token_tiles, num_token_tiles = empty(max_rows), empty(max_tiles, 4), empty(1)
    padded_top = triton.next_power_of_2(experts_per_token)
    if num_tokens <= _FEW_TOKENS:
        next_tile = empty(2)
        _place_few_kernel[(1,)](
            router_logits, rows, weights, token_of_row, token_tiles, num_token_tiles, next_tile, num_tokens,
            num_experts, experts_per_token, padded_top, 16 if num_tokens <= 16 else _FEW_TOKENS, UNIT,
        )  # fmt: skip
        return Placement(rows, weights, token_of_row, token_tiles, num_token_tiles, next_tile)
    zeros = torch.zeros(2 * num_experts + 2, dtype=torch.int32, device=device)
    counts, cursor, next_tile = zeros.split((num_experts, num_experts, 2))
    ids = empty(num_tokens, experts_per_token)
    _route_kernel[(triton.cdiv(num_tokens, _ROUTE_TOKENS),)](
        router_logits, ids, weights, counts, num_tokens,
        num_experts, experts_per_token, padded_top, _ROUTE_TOKENS,
    )  # fmt: skip
    num_place_programs = triton.cdiv(num_pairs, _PLACE_PAIRS)
    _place_kernel[(num_place_programs + num_experts,)](
        ids, counts, cursor, rows, token_of_row, token_tiles, num_token_tiles, num_pairs, num_place_programs,
        num_experts, experts_per_token, _PLACE_PAIRS, UNIT, MAX_TOKENS, 32,
    )  # fmt: skip
    return Placement(rows, weights, token_of_row, token_tiles, num_token_tiles, next_tile)
