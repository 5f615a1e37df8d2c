"""What steps need beside weights and KV cache: tried before there is a KV cache, to see how much memory to leave."""

from collections.abc import Callable

import torch
from torch import Tensor

from rose.engine.config import EngineConfig
from rose.engine.kv_cache.spec import KVCacheSpec
from rose.engine.sampling_params import SamplingParams
from rose.engine.scheduler_output import NewRequest, ScheduledRequest, SchedulerOutput
from rose.engine.worker.batch_shape import GraphShapes
from rose.engine.worker.input_batch import InputBatch
from rose.engine.worker.kv_tensors import KVTensors
from rose.engine.worker.sampler import Sampled, sample
from rose.log import get_logger
from rose.models.base import CausalLM

logger = get_logger(__name__)

# What a pool of graphs takes for each byte that is in use at once: it gives nothing back, and holds on to what is left
# of blocks that were cut. Measured: 1.3 with 20b's dense layers in bfloat16, 1.7 in FP8.
_POOL_FACTOR = 1.7


def measure_activations(
    model: CausalLM, spec: KVCacheSpec, config: EngineConfig, graph_shapes: GraphShapes | None
) -> int:
    """The most memory, in bytes, that a GPU needs beside weights and KV cache. graph_shapes: of those that have graphs.

    A step's forward pass and its sampling take the same memory, one after the other. Graphs have memory apart from
    that: all together that of the largest, and logits, which outlive them. They do not sample but for `sample_tokens`.
    """
    trial = Trial(model, spec, config)
    forward = _peak_bytes(model.device, lambda: trial.forward(trial.max_num_tokens))
    sampling = _peak_bytes(model.device, trial.sample)
    graphs = 0
    if graph_shapes is not None:
        in_use = _peak_bytes(model.device, lambda: trial.forward(graph_shapes.max_num_tokens))
        graphs = round(_POOL_FACTOR * in_use)
        graphs += graph_shapes.max_num_requests * model.vocab_size * torch.float32.itemsize
    logger.info(
        "memory of a step: forward pass %.3f GiB, then sampling %.3f GiB; of graphs %.3f GiB",
        *(num_bytes / 2**30 for num_bytes in (forward, sampling, graphs)),
    )
    return max(forward, sampling) + graphs


def _peak_bytes(device: torch.device, work: Callable[[], object]) -> int:
    """The most memory that `work` has at any time."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    return torch.cuda.max_memory_allocated(device) - before


class Trial:
    """Steps with as many requests as can be, on a KV cache of their own: for their size, not for their answer.

    One long request for the layers; the rest, of one token each, for the logits. All are in the same blocks.
    """

    def __init__(self, model: CausalLM, spec: KVCacheSpec, config: EngineConfig) -> None:
        self._model = model
        self.max_num_tokens = min(config.max_num_batched_tokens, model.max_position - 1)
        self._num_requests = min(config.max_num_seqs, self.max_num_tokens)
        num_groups, num_blocks = len(spec.groups), spec.blocks_for(self.max_num_tokens)
        self._batch = InputBatch(
            KVTensors(spec, 1 + num_groups * num_blocks, device=model.device, dtype=model.dtype),
            max_num_seqs=self._num_requests,
            max_num_batched_tokens=self.max_num_tokens,
            max_model_len=self.max_num_tokens,
            device=model.device,
        )
        tables = tuple(list(range(1 + group * num_blocks, 1 + (group + 1) * num_blocks)) for group in range(num_groups))
        self._batch.apply(SchedulerOutput(new=[_new(key, n, tables) for key, n in enumerate(self._lengths())]))

    @torch.inference_mode()
    def forward(self, num_tokens: int) -> Tensor:
        """Compute a step of so many tokens, [num_requests, vocab_size] float32 logits."""
        scheduled = [
            ScheduledRequest(key=key, num_computed_tokens=0, num_tokens=n)
            for key, n in enumerate(self._lengths(num_tokens))
        ]
        inputs = self._batch.buffers.inputs(self._batch.shape(scheduled))
        self._batch.fill(inputs, scheduled)
        hidden = self._model.forward(inputs.batch)
        return self._model.compute_logits(hidden[inputs.sampling_rows])

    @torch.inference_mode()
    def sample(self) -> list[Sampled]:
        """Sample with changed logits, the nucleus and log-probabilities, from equal logits: these have the largest."""
        logits = torch.zeros(self._num_requests, self._model.vocab_size, device=self._model.device)
        return sample(logits, [self._batch.sampling_row(key) for key in range(self._num_requests)])

    def _lengths(self, num_tokens: int | None = None) -> list[int]:
        """Of the requests of a step; by default of the largest."""
        num_tokens = min(num_tokens or self.max_num_tokens, self.max_num_tokens)
        num_requests = min(self._num_requests, num_tokens)
        return [num_tokens - num_requests + 1, *[1] * (num_requests - 1)]


def _new(key: int, length: int, block_tables: tuple[list[int], ...]) -> NewRequest:
    return NewRequest(
        key=key,
        token_ids=[0] * length,
        num_prompt_tokens=length,
        params=SamplingParams(top_p=0.9, presence_penalty=0.5, logprobs=0),
        seed=0,
        stop_ids=(),
        block_tables=block_tables,
    )
