"""The launchers of `experts_sm90.cu`."""

import functools
from pathlib import Path

import torch
from torch import Tensor

from rose.kernels.cuda_module import CudaKernel, TensorMap, num_sms
from rose.kernels.moe_fp8.place_triton import MAX_TOKENS, UNIT, Placement
from rose.numerics.fp8 import E4M3, Fp8RowTensor

_TILE_K, _PART_ROWS, _PARTS, _STAGES, _NUM_THREADS = 128, 128, 2, 4, 384
# Stages of weights and tokens; for each part staged results and the scales of tokens; tiles, barriers, room to align.
_SHARED_BYTES = _STAGES * (_PARTS * _PART_ROWS + MAX_TOKENS) * _TILE_K + _PARTS * (3072 + 1024) + 256 + 1024


@functools.cache
def _kernel(device_index: int, name: str) -> CudaKernel:
    path = Path(__file__).with_suffix(".cu")
    return CudaKernel(path, name, shared_bytes=_SHARED_BYTES)


def gate_up_sm90(
    x: Fp8RowTensor, placement: Placement, weight: Fp8RowTensor, bias: Tensor, *, swiglu_alpha: float
) -> Tensor:
    """Rounded tokens [num_tokens, hidden_size] -> activated rows [max_rows, intermediate_size] E4M3, times 8."""
    num_experts, weight_rows, hidden_size = weight.shape
    device_index = x.values.device.index
    out = torch.empty((placement.token_of_row.shape[0], weight_rows // 2), dtype=E4M3, device=x.values.device)
    # [gate or up, 32 rows each, odd or even feature, every second of 16 features, k]: the order in which a box of it
    # lies in shared memory, see the kernel.
    k = hidden_size
    shape, strides = (2, num_experts * weight_rows // 32, 2, 8, k), (k, 32 * k, 2 * k, 4 * k, 1)
    box = (2, _PART_ROWS // 32, 2, 8, _TILE_K)
    _kernel(device_index, "experts_gate_up").launch(
        num_sms(device_index),
        _NUM_THREADS,
        [
            TensorMap(weight.values.as_strided(shape, strides), box),
            weight.scales,
            bias,
            placement.token_tiles,
            placement.num_token_tiles,
            placement.next_tile[:1],
            weight_rows,
            hidden_size,
            x.values,
            x.scales,
            placement.token_of_row,
            x.values.shape[0],
            swiglu_alpha,
            out,
        ],
    )
    return out


def down_sm90(activated: Tensor, placement: Placement, weight: Fp8RowTensor, bias: Tensor) -> Tensor:
    """Activated rows -> rows [max_rows, hidden_size] bfloat16."""
    _, hidden_size, intermediate_size = weight.shape
    device_index = activated.device.index
    out = torch.empty((activated.shape[0], hidden_size), dtype=torch.bfloat16, device=activated.device)
    _kernel(device_index, "experts_down").launch(
        num_sms(device_index),
        _NUM_THREADS,
        [
            TensorMap(weight.values, (1, _PART_ROWS, _TILE_K)),
            weight.scales,
            bias,
            placement.token_tiles,
            placement.num_token_tiles,
            placement.next_tile[1:],
            hidden_size,
            intermediate_size,
            TensorMap(activated, (UNIT, _TILE_K)),
            out,
        ],
    )
    return out
