"""`moe_fp8` in Triton: route, place, permute and round, two grouped products, combine. No host synchronisation.

Rows are sorted by expert, each expert's starting at a multiple of the tile height, so that a tile belongs to one expert
and is loaded and stored by the copy engine whole. Rows between experts hold garbage that nobody reads.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from rose.kernels.cuda_module import num_sms
from rose.kernels.linear_fp8.round_tokens_triton import e4m3_scale
from rose.kernels.moe_fp8.launch import GroupedGemmLaunch, grouped_gemm_launch
from rose.numerics.fp8 import E4M3, Fp8RowTensor

_ROUTE_TOKENS = 32
_PLACE_PAIRS = 256


@triton.jit
def _route_kernel(
    logits_ptr, ids_ptr, weights_ptr, counts_ptr, num_tokens,
    NUM_EXPERTS: tl.constexpr, TOP: tl.constexpr, PADDED_TOP: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    exists = token < num_tokens
    expert = tl.arange(0, NUM_EXPERTS)
    at = token[:, None] * NUM_EXPERTS + expert[None, :]
    left = tl.load(logits_ptr + at, mask=exists[:, None], other=0.0).to(tl.float32)
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
    out = token[:, None] * TOP + slot
    stored = exists[:, None] & (slot < TOP)
    tl.store(ids_ptr + out, ids, mask=stored)
    tl.store(weights_ptr + out, weight, mask=stored)
    tl.atomic_add(counts_ptr + expert, count, mask=count > 0)


@triton.jit
def _starts_kernel(
    counts_ptr, starts_ptr, tile_expert_ptr, num_tiles_ptr,
    NUM_EXPERTS: tl.constexpr, TILE_M: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One program per expert: its first row, and its name on each of its tiles."""
    mine = tl.program_id(0)
    expert = tl.arange(0, NUM_EXPERTS)
    tiles = (tl.load(counts_ptr + expert) + TILE_M - 1) // TILE_M
    first = tl.sum(tl.where(expert < mine, tiles, 0), 0)
    count = tl.sum(tl.where(expert == mine, tiles, 0), 0)
    tl.store(starts_ptr + mine, first * TILE_M)
    for i in range(0, count, CHUNK):
        tile = i + tl.arange(0, CHUNK)
        tl.store(tile_expert_ptr + first + tile, mine + tl.zeros([CHUNK], tl.int32), mask=tile < count)
    if mine == 0:
        tl.store(num_tiles_ptr, tl.sum(tiles, 0))


@triton.jit
def _place_kernel(ids_ptr, starts_ptr, cursor_ptr, rows_ptr, num_pairs, NUM_EXPERTS: tl.constexpr, PAIRS: tl.constexpr):
    """The row of each (token, choice). Which of its expert's rows a pair gets is chance; no result depends on it."""
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    exists = pair < num_pairs
    chosen = tl.load(ids_ptr + pair, mask=exists, other=0)
    expert = tl.arange(0, NUM_EXPERTS)
    hit = ((chosen[:, None] == expert[None, :]) & exists[:, None]).to(tl.int32)
    rank = tl.cumsum(hit, 0) - hit
    base = tl.load(starts_ptr + expert) + tl.atomic_add(cursor_ptr + expert, tl.sum(hit, 0))
    tl.store(rows_ptr + pair, tl.sum(hit * (rank + base[None, :]), 1), mask=exists)


@triton.jit
def _permute_kernel(
    x_ptr, rows_ptr, out_ptr, scales_ptr, WIDTH: tl.constexpr, PADDED_WIDTH: tl.constexpr, TOP: tl.constexpr
):
    """Round a token to E4M3 with one power-of-two scale and write it to the rows of its experts."""
    token = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PADDED_WIDTH)
    inside = i < WIDTH
    x = tl.load(x_ptr + token * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    scale, inverse = e4m3_scale(tl.max(tl.abs(x), 0))
    rounded = (x * inverse).to(out_ptr.dtype.element_ty)
    for j in tl.static_range(TOP):
        row = tl.load(rows_ptr + token * TOP + j).to(tl.int64)
        tl.store(out_ptr + row * WIDTH + i, rounded, mask=inside)
        tl.store(scales_ptr + row, scale)


@triton.jit
def _grouped_gemm_kernel(
    a_desc, b_desc, c_desc, a_scales_ptr, b_scales_ptr, bias_ptr, tile_expert_ptr, num_tiles_ptr, alpha,
    N: tl.constexpr, K: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
    SWIGLU: tl.constexpr, NUM_PROGRAMS: tl.constexpr, STAGES: tl.constexpr, GROUP_N: tl.constexpr,
    FLATTEN: tl.constexpr,
):  # fmt: skip
    """C = scales * (A B^T) + bias per expert, persistent; with SWIGLU, activated, times 8, rounded to E4M3.

    Without SWIGLU, A is what SWIGLU wrote: its scale is 1 / 8 everywhere.
    """
    num_m = tl.load(num_tiles_ptr)
    num_n: tl.constexpr = (N + TILE_N - 1) // TILE_N
    for tile in tl.range(tl.program_id(0), num_m * num_n, NUM_PROGRAMS, flatten=FLATTEN):
        # A wave of programs shares a few rows of A and a few of B, both from the L2 cache.
        group = tile // (num_m * GROUP_N)
        width = tl.minimum(num_n - group * GROUP_N, GROUP_N)
        local = tile - group * num_m * GROUP_N
        tile_m = local // width
        tile_n = group * GROUP_N + local % width
        expert = tl.load(tile_expert_ptr + tile_m)
        acc = tl.zeros([TILE_M, TILE_N], tl.float32)
        for k in tl.range(0, K, TILE_K, num_stages=STAGES):  # past K the copy engine fills in zeros
            a = a_desc.load([tile_m * TILE_M, k])
            b = b_desc.load([expert, tile_n * TILE_N, k]).reshape(TILE_N, TILE_K)
            acc = tl.dot(a, b.T, acc)
        n = tile_n * TILE_N + tl.arange(0, TILE_N)
        at = expert.to(tl.int64) * N + n
        b_scales = tl.load(b_scales_ptr + at, mask=n < N, other=0.0)
        bias = tl.load(bias_ptr + at, mask=n < N, other=0.0).to(tl.float32)
        if SWIGLU:
            a_scales = tl.load(a_scales_ptr + tile_m * TILE_M + tl.arange(0, TILE_M))
            acc = acc * a_scales[:, None] * b_scales[None, :] + bias[None, :]
            gate, up = tl.split(tl.reshape(acc, (TILE_M, TILE_N // 2, 2)))
            gate = tl.minimum(gate, 7.0)
            up = tl.minimum(tl.maximum(up, -7.0), 7.0)
            activated = gate / (1.0 + tl.exp2(gate * alpha * -1.4426950408889634)) * (up + 1.0)
            c_desc.store([tile_m * TILE_M, tile_n * (TILE_N // 2)], (activated * 8.0).to(c_desc.dtype))
        else:
            acc = acc * (b_scales * 0.125)[None, :] + bias[None, :]
            c_desc.store([tile_m * TILE_M, tile_n * TILE_N], acc.to(c_desc.dtype))


@triton.jit
def _combine_kernel(
    y_ptr, rows_ptr, weights_ptr, out_ptr, WIDTH: tl.constexpr, PADDED_WIDTH: tl.constexpr, TOP: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PADDED_WIDTH)
    inside = i < WIDTH
    acc = tl.zeros([PADDED_WIDTH], tl.float32)
    for j in tl.static_range(TOP):
        row = tl.load(rows_ptr + token * TOP + j).to(tl.int64)
        weight = tl.load(weights_ptr + token * TOP + j)
        acc += weight * tl.load(y_ptr + row * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * WIDTH + i, acc.to(out_ptr.dtype.element_ty), mask=inside)


def moe_fp8_triton(
    x: Tensor,
    router_logits: Tensor,
    gate_up: Fp8RowTensor,
    gate_up_bias: Tensor,
    down: Fp8RowTensor,
    down_bias: Tensor,
    *,
    experts_per_token: int,
    swiglu_alpha: float,
    launch: GroupedGemmLaunch | None = None,
    num_programs: int | None = None,
) -> Tensor:
    """See `op.py`. launch, num_programs: instead of the ones chosen, for measuring and for the interpreter."""
    num_tokens, hidden_size = x.shape
    num_experts, intermediate_size = gate_up.shape[0], gate_up.shape[1] // 2
    num_pairs = num_tokens * experts_per_token
    launch = launch or grouped_gemm_launch(num_pairs, num_experts)
    num_programs = num_programs or num_sms(x.device.index)
    max_tiles = num_pairs // launch.tile_m + min(num_experts, num_pairs)
    max_rows = max_tiles * launch.tile_m

    def empty(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=x.device)

    ids, rows = empty(num_pairs, dtype=torch.int32), empty(num_pairs, dtype=torch.int32)
    weights = empty(num_pairs, dtype=torch.float32)
    counts, cursor = torch.zeros((2, num_experts), dtype=torch.int32, device=x.device)
    starts, tile_expert = empty(num_experts, dtype=torch.int32), empty(max_tiles, dtype=torch.int32)
    num_tiles = empty(1, dtype=torch.int32)
    _route_kernel[(triton.cdiv(num_tokens, _ROUTE_TOKENS),)](
        router_logits, ids, weights, counts, num_tokens,
        num_experts, experts_per_token, triton.next_power_of_2(experts_per_token), _ROUTE_TOKENS,
    )  # fmt: skip
    _starts_kernel[(num_experts,)](counts, starts, tile_expert, num_tiles, num_experts, launch.tile_m, 64, num_warps=1)
    _place_kernel[(triton.cdiv(num_pairs, _PLACE_PAIRS),)](
        ids, starts, cursor, rows, num_pairs, num_experts, _PLACE_PAIRS
    )
    permuted, scales = empty(max_rows, hidden_size, dtype=E4M3), empty(max_rows, dtype=torch.float32)
    width = triton.next_power_of_2(hidden_size)
    _permute_kernel[(num_tokens,)](x, rows, permuted, scales, hidden_size, width, experts_per_token)
    activated = empty(max_rows, intermediate_size, dtype=E4M3)
    _grouped_gemm(
        permuted, scales, gate_up, gate_up_bias, activated, tile_expert, num_tiles,
        alpha=swiglu_alpha, launch=launch, num_programs=num_programs,
    )  # fmt: skip
    out_rows = empty(max_rows, hidden_size, dtype=torch.bfloat16)
    _grouped_gemm(
        activated, None, down, down_bias, out_rows, tile_expert, num_tiles,
        alpha=swiglu_alpha, launch=launch, num_programs=num_programs,
    )  # fmt: skip
    y = torch.empty_like(x)
    _combine_kernel[(num_tokens,)](out_rows, rows, weights, y, hidden_size, width, experts_per_token)
    return y


def _grouped_gemm(
    a: Tensor,
    a_scales: Tensor | None,
    weight: Fp8RowTensor,
    bias: Tensor,
    out: Tensor,
    tile_expert: Tensor,
    num_tiles: Tensor,
    *,
    alpha: float,
    launch: GroupedGemmLaunch,
    num_programs: int,
) -> None:
    """One grouped product; with a_scales, the one that activates."""
    _, out_features, in_features = weight.shape
    tile_m, tile_n, tile_k = launch.tile_m, launch.tile_n, launch.tile_k
    swiglu = a_scales is not None
    _grouped_gemm_kernel[(num_programs,)](
        TensorDescriptor.from_tensor(a, [tile_m, tile_k]),
        TensorDescriptor.from_tensor(weight.values, [1, tile_n, tile_k]),
        TensorDescriptor.from_tensor(out, [tile_m, tile_n // 2 if swiglu else tile_n]),
        weight.scales if a_scales is None else a_scales,
        weight.scales,
        bias,
        tile_expert,
        num_tiles,
        alpha,
        out_features,
        in_features,
        tile_m,
        tile_n,
        tile_k,
        swiglu,
        num_programs,
        launch.num_stages,
        launch.group_n,
        launch.flatten,
        num_warps=launch.num_warps,
    )
