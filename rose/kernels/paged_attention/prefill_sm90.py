"""The launcher of `prefill_sm90.cu`."""

import functools
from pathlib import Path

import torch
from torch import Tensor

from rose.kernels.cuda_module import CudaKernel, TensorMap, num_sms

_TILE_TOKENS, _TILE_KEYS, _NUM_THREADS = 24, 128, 512
# Two query tiles of 192 rows, four stages of a key and a value tile, constants and barriers, and room to align.
_SHARED_BYTES = 2 * 192 * 128 + 4 * 2 * _TILE_KEYS * 128 + 4 * 2048 + 256 + 2 * 1024


_NO_WINDOW = 2**31 - 1
_MARKS_PER_TILE = 12  # one for each warp that computes rows


@functools.cache
def _kernel(device_index: int, name: str) -> CudaKernel:
    path = Path(__file__).with_suffix(".cu")
    return CudaKernel(path, name, shared_bytes=_SHARED_BYTES)


def attention_prefill_sm90(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    *,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    sinks: Tensor,
    sliding_window: int | None,
    heads_together: int,
) -> Tensor:
    """The op's contract, narrowed as the .cu file says. heads_together: see `launch.heads_together`.

    Unlike the reference it may read the slots of a request's blocks that no query sees, and multiplies their values by
    zero: every slot's value must be a finite number, see `rope_kv_write`.
    """
    num_tokens, num_q_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = key_cache.shape
    num_requests = seq_lens.numel()
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    rows = min(block_size, _TILE_KEYS)
    num_row_tiles = num_tokens // _TILE_TOKENS + num_requests  # at least as many as there are
    num_tiles = num_row_tiles * num_kv_heads
    device_index = query.device.index
    arguments = [
        TensorMap(query, (_TILE_TOKENS, num_q_heads // num_kv_heads, head_dim)),
        TensorMap(key_cache, (1, rows, 1, head_dim)),
        TensorMap(value_cache, (1, rows, 1, head_dim)),
        block_table,
        cu_seqlens_q,
        seq_lens,
        sinks,
        out,
        torch.empty(num_tiles * _MARKS_PER_TILE, dtype=torch.uint8, device=query.device),
        num_requests,
        block_table.stride(0),
        num_row_tiles,
        num_kv_heads,
        block_size,
        heads_together,
        _NO_WINDOW if sliding_window is None else sliding_window,
    ]
    # The second computes anew what the first marked, which is nothing but for absurd scores.
    for name in ("attention_prefill_unshifted", "attention_prefill_shifted"):
        kernel = _kernel(device_index, name)
        kernel.launch(min(num_sms(device_index), num_tiles), _NUM_THREADS, arguments)
    return out
