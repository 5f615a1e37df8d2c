"""A product with an FP8 weight for few rows, in float32: what the unembedding of a step's last positions needs.

Reads each weight once, which is all its cost; cuBLAS gives no float32 result with row scales.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rose.numerics.fp8 import Fp8RowTensor

_LEAST_ROWS, _MOST_ROWS = 16, 64  # of a tile: the least that the matrix units take, and what fits in registers


@triton.jit(do_not_specialize=["num_rows"])  # one kernel for all of them
def _few_rows_kernel(
    x_ptr, x_scales_ptr, weight_ptr, weight_scales_ptr, out_ptr, num_rows, out_features,
    K: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    # Tiles of rows are neighbours in the grid, so that all but the first find their weights in the L2 cache.
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    n = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    row_exists, n_exists = row < num_rows, n < out_features
    at_weight = weight_ptr + n.to(tl.int64)[:, None] * K
    at_x = x_ptr + row[:, None] * K
    acc = tl.zeros([TILE_ROWS, TILE_N], tl.float32)
    for start in tl.range(0, K, TILE_K, num_stages=4):
        k = start + tl.arange(0, TILE_K)
        x = tl.load(at_x + k[None, :], mask=row_exists[:, None] & (k < K)[None, :], other=0.0)
        weight = tl.load(at_weight + k[None, :], mask=n_exists[:, None] & (k < K)[None, :], other=0.0)
        acc = tl.dot(x, weight.T, acc)
    scale = tl.load(x_scales_ptr + row, mask=row_exists, other=0.0)[:, None]
    scale = scale * tl.load(weight_scales_ptr + n, mask=n_exists, other=0.0)[None, :]
    out = out_ptr + row.to(tl.int64)[:, None] * out_features + n[None, :]
    tl.store(out, acc * scale, mask=row_exists[:, None] & n_exists[None, :])


def few_rows_triton(values: Tensor, scales: Tensor, weight: Fp8RowTensor) -> Tensor:
    """Rounded tokens [num_rows, in_features] E4M3 with [num_rows] scales -> [num_rows, out_features] float32."""
    num_rows, in_features = values.shape
    out_features = weight.shape[0]
    out = torch.empty((num_rows, out_features), dtype=torch.float32, device=values.device)
    tile_n = 64
    tile_rows = min(max(triton.next_power_of_2(num_rows), _LEAST_ROWS), _MOST_ROWS)
    _few_rows_kernel[(triton.cdiv(num_rows, tile_rows), triton.cdiv(out_features, tile_n))](
        values, scales, weight.values, weight.scales, out, num_rows, out_features,
        in_features, tile_rows, tile_n, 128, num_warps=4,
    )  # fmt: skip
    return out
