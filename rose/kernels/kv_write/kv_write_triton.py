"""`kv_write_` in Triton: one program copies one token's keys and values."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _kv_write_kernel(
    key_ptr, value_ptr, key_cache_ptr, value_cache_ptr, slots_ptr, key_stride, value_stride,
    ROW: tl.constexpr, PADDED_ROW: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PADDED_ROW)
    inside = i < ROW
    to = tl.load(slots_ptr + token) * ROW + i
    tl.store(key_cache_ptr + to, tl.load(key_ptr + token * key_stride + i, mask=inside), mask=inside)
    tl.store(value_cache_ptr + to, tl.load(value_ptr + token * value_stride + i, mask=inside), mask=inside)


def kv_write_triton(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """See `op.py`, for heads that are neighbours in memory."""
    num_tokens, num_kv_heads, head_dim = key.shape
    row = num_kv_heads * head_dim
    _kv_write_kernel[(num_tokens,)](
        key, value, key_cache, value_cache, slot_mapping, key.stride(0), value.stride(0),
        row, triton.next_power_of_2(row), num_warps=2,
    )  # fmt: skip
