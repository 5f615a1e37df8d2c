"""A loaded model under the engine's core, stepped by the benchmark itself: no server, no other process."""

import dataclasses
import time
from typing import Any

import torch

from rose.bench.executor import BenchExecutor
from rose.bench.results import Configuration, DoesNotFit, PointFailed
from rose.bench.workload import RandomPrompts
from rose.engine.config import EngineConfig
from rose.engine.core import EngineCore
from rose.engine.messages import EngineOutputs
from rose.engine.worker.worker import Worker, build_worker
from rose.errors import ConfigError


class Rig:
    """One model on its device. Make a core for each point with `new_core`."""

    def __init__(self, worker: Worker, seed: int) -> None:
        self.worker = worker
        self.device: torch.device = worker.model.device
        self.prompts = RandomPrompts(worker.model.vocab_size, seed)
        self.executor = BenchExecutor(worker, self.prompts.random)

    @classmethod
    def load(cls, config: EngineConfig) -> "Rig":
        """Load the model. Raises `DoesNotFit` if memory is short, `ConfigError`, `CheckpointError`."""
        try:
            worker = build_worker(config)
            return cls(worker, 0 if config.seed is None else config.seed)
        except torch.OutOfMemoryError as error:
            raise DoesNotFit(f"out of memory while loading: {_first_line(error)}") from error

    def new_core(self, *, max_num_seqs: int, max_num_batched_tokens: int) -> EngineCore:
        """An engine with an empty KV cache that never reuses a prefix. Ends whatever an earlier core had open."""
        self.executor.forget_requests()
        return EngineCore(
            self.executor,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            enable_prefix_caching=False,
            seed=0,
        )


def timed_step(core: EngineCore) -> tuple[float, EngineOutputs]:
    """One step and its time in seconds. Raises `PointFailed` if a request failed, `DoesNotFit` if memory ran out."""
    begin = time.perf_counter()
    try:
        outputs = core.step()
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()  # for the points that come after
        raise DoesNotFit(f"out of memory in a step: {_first_line(error)}") from error
    seconds = time.perf_counter() - begin
    for output in outputs.outputs:
        if output.error is not None:
            kind = DoesNotFit if output.error.code in ("kv_cache_exhausted", "context_length_exceeded") else PointFailed
            raise kind(output.error.message)
    return seconds, outputs


def engine_config(configuration: Configuration, **options: Any) -> EngineConfig:
    """The engine's configuration. options: other fields of `EngineConfig`; None leaves a field as it is.

    Raises `ConfigError` for a spread that this build's engine does not have.
    """
    known = {field.name for field in dataclasses.fields(EngineConfig)}
    wanted = {
        "tensor_parallel_size": (configuration.tensor_parallel_size, 1),
        "data_parallel_size": (configuration.data_parallel_size, 1),
        "enable_expert_parallel": (configuration.expert_parallel, False),
    }
    options = {
        "device": configuration.device,
        "dtype": configuration.dtype,
        "load_format": configuration.load_format,
        "experts": configuration.experts,
        "dense": configuration.dense,
        "max_num_batched_tokens": configuration.max_num_batched_tokens,
        "block_size": configuration.block_size,
        **options,
    }
    for name, (value, default) in wanted.items():
        if value == default:
            continue
        if name not in known:
            raise ConfigError(f"{name}={value}: the engine of this version has no such option")
        options[name] = value
    return EngineConfig(
        model=configuration.model, **{name: value for name, value in options.items() if value is not None}
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
