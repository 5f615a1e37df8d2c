"""A step of the greatest size, run before there is a KV cache to see how much memory must be left beside it."""

import torch

from rose.engine.config import EngineConfig
from rose.engine.kv_cache.spec import KVCacheSpec
from rose.engine.sampling_params import SamplingParams
from rose.engine.scheduler_output import NewRequest, ScheduledRequest, SchedulerOutput
from rose.engine.worker.input_batch import InputBatch
from rose.engine.worker.kv_tensors import KVTensors
from rose.engine.worker.model_runner import ModelRunner
from rose.models.base import CausalLM


def measure_activations(model: CausalLM, spec: KVCacheSpec, config: EngineConfig, num_tokens: int) -> int:
    """The most memory, in bytes, that a step of so many tokens takes on a GPU beside weights and KV cache."""
    before = torch.cuda.memory_allocated(model.device)
    torch.cuda.reset_peak_memory_stats(model.device)
    trial_bytes = try_step(model, spec, config, num_tokens)
    torch.cuda.synchronize(model.device)
    return torch.cuda.max_memory_allocated(model.device) - before - trial_bytes


def try_step(model: CausalLM, spec: KVCacheSpec, config: EngineConfig, num_tokens: int) -> int:
    """Run a step with as many requests as can be, on a KV cache of its own; returns the bytes of that cache."""
    num_tokens = min(num_tokens, model.max_position - 1)
    num_blocks = spec.blocks_for(num_tokens)
    kv = KVTensors(spec, 1 + len(spec.groups) * num_blocks, device=model.device, dtype=model.dtype)
    # One long request for the layers; the rest, of one token each, for the logits.
    num_short = min(config.max_num_seqs, num_tokens) - 1
    lengths = [num_tokens - num_short, *[1] * num_short]
    inputs = InputBatch(
        kv,
        max_num_seqs=len(lengths),
        max_num_batched_tokens=num_tokens,
        max_model_len=num_tokens,
        device=model.device,
    )
    ModelRunner(model, inputs).execute(_trial_step(lengths, len(spec.groups), num_blocks))
    return sum(tensor.nbytes for tensor in kv.tensors)


def _trial_step(lengths: list[int], num_groups: int, num_blocks: int) -> SchedulerOutput:
    """A step of requests with these lengths, all in the same blocks: for its size, not for its answer."""
    tables = tuple(list(range(1 + group * num_blocks, 1 + (group + 1) * num_blocks)) for group in range(num_groups))
    params = SamplingParams(top_p=0.9, logprobs=0)
    new = [
        NewRequest(
            key=key,
            token_ids=[0] * length,
            num_prompt_tokens=length,
            params=params,
            seed=0,
            stop_ids=(),
            block_tables=tables,
        )
        for key, length in enumerate(lengths)
    ]
    scheduled = [
        ScheduledRequest(key=key, num_computed_tokens=0, num_tokens=length) for key, length in enumerate(lengths)
    ]
    return SchedulerOutput(new=new, scheduled=scheduled)
