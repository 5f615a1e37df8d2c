"""Write new keys and values into a paged KV cache.

    key_cache[slot // block_size, slot % block_size] = key[t]      with slot = slot_mapping[t]; the same for values

key, value: [num_tokens, num_kv_heads, head_dim]; rows may be strided, the last dimension is not.
key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim], contiguous, of the dtype of key; written in
place, no other slot is touched. slot_mapping: [num_tokens] int64, all different (else the result is either one's).
Hardware: any. Source: vLLM's paged KV cache, Kwon et al., arXiv 2309.06180.
"""

import torch
from torch import Tensor

from rose.kernels.contract import FLOATS, require, require_dtype, require_shape
from rose.kernels.hopper import on_hopper
from rose.kernels.kv_write.reference import kv_write_reference


def kv_write_(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write key and value at their slots; see the module's contract. Raises UnsupportedShape."""
    num_tokens, num_kv_heads, head_dim = key.shape
    require_shape("kv_write", "value", value, (num_tokens, num_kv_heads, head_dim))
    require_shape("kv_write", "key_cache", key_cache, (None, None, num_kv_heads, head_dim))
    require_shape("kv_write", "value_cache", value_cache, tuple(key_cache.shape))
    require_shape("kv_write", "slot_mapping", slot_mapping, (num_tokens,))
    require_dtype("kv_write", "slot_mapping", slot_mapping, torch.int64)
    require_dtype("kv_write", "key", key, *FLOATS)
    for name, tensor in (("value", value), ("key_cache", key_cache), ("value_cache", value_cache)):
        require_dtype("kv_write", name, tensor, key.dtype)
    contiguous = key_cache.is_contiguous() and value_cache.is_contiguous()
    require(contiguous, "kv_write", f"caches must be contiguous, got {key_cache.stride()}, {value_cache.stride()}")
    adjacent_heads = key.stride(1) == head_dim and value.stride(1) == head_dim
    if on_hopper(key) and adjacent_heads and num_tokens > 0:
        from rose.kernels.kv_write.kv_write_triton import kv_write_triton

        kv_write_triton(key, value, key_cache, value_cache, slot_mapping)
    else:
        kv_write_reference(key, value, key_cache, value_cache, slot_mapping)
