"""How large the KV cache is, and the longest request that it allows. Decided once, before it is allocated."""

from dataclasses import dataclass

from rose.engine.config import EngineConfig
from rose.engine.kv_cache.spec import KVCacheSpec
from rose.errors import ConfigError

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class KVCachePlan:
    """`num_blocks` includes the null block. `max_model_len`: tokens of the longest request."""

    num_blocks: int
    max_model_len: int
    total_bytes: int


def plan_kv_cache(
    config: EngineConfig, spec: KVCacheSpec, *, max_position: int, available_bytes: int, dtype_bytes: int
) -> KVCachePlan:
    """Choose the number of blocks and the longest request.

    max_position: the model's own limit. available_bytes: memory for the cache, unless `config` sets its size.
    Raises `ConfigError` if the `max_model_len` asked for does not fit, saying by how much and what to change.
    """
    config.check_length(max_position)
    block_bytes = spec.block_bytes(dtype_bytes)
    budget_bytes = available_bytes if config.kv_cache_bytes is None else config.kv_cache_bytes
    num_blocks = budget_bytes // block_bytes if config.num_blocks is None else config.num_blocks
    longest = spec.max_tokens(max(0, num_blocks - 1))
    max_model_len = config.max_model_len or min(max_position, longest)
    if max_model_len > longest or max_model_len < 2:
        _refuse(spec, max(max_model_len, 2), longest, num_blocks, block_bytes)
    if config.num_blocks is None and config.kv_cache_bytes is None:
        num_blocks = min(num_blocks, _useful_blocks(config, spec, max_model_len))
    return KVCachePlan(num_blocks, max_model_len, num_blocks * block_bytes)


def _useful_blocks(config: EngineConfig, spec: KVCacheSpec, max_model_len: int) -> int:
    """Blocks that are enough for `max_num_seqs` requests of the greatest length, whatever they do."""
    # Within a step, the tokens of a chunk hold blocks of sliding groups too, wherever the window is.
    chunks = len(spec.groups) * (spec.blocks_for(config.max_num_batched_tokens) + config.max_num_seqs)
    return 1 + config.max_num_seqs * spec.min_blocks(max_model_len) + chunks


def _refuse(spec: KVCacheSpec, max_model_len: int, longest: int, num_blocks: int, block_bytes: int) -> None:
    needed = (spec.min_blocks(max_model_len) + 1) * block_bytes
    present = num_blocks * block_bytes
    raise ConfigError(
        f"max_model_len {max_model_len} needs a KV cache of {needed / GIB:.3f} GiB, but there is memory for "
        f"{max(present, 0) / GIB:.3f} GiB, which is {(needed - present) / GIB:.3f} GiB short: lower max_model_len "
        f"to {longest} or less, or raise gpu_memory_utilization (GPU), kv_cache_bytes or num_blocks"
    )
