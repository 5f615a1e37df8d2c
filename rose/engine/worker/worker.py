"""A model on its device, with its KV cache: from an `EngineConfig` to something that executes steps."""

import importlib
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch

from rose.engine.config import EngineConfig
from rose.engine.core import EngineCore
from rose.engine.kv_cache.plan import KVCachePlan, plan_kv_cache
from rose.engine.kv_cache.spec import KVCacheSpec
from rose.engine.messages import EngineReady
from rose.engine.scheduler_output import SampledTokens, SchedulerOutput
from rose.engine.worker.batch_shape import GraphShapes
from rose.engine.worker.cuda_graph import CannotCaptureError, CudaRecorder, ForwardGraphs, forbid_waiting
from rose.engine.worker.grammar import Grammars
from rose.engine.worker.grammar_tokenizer import TokenizerFile
from rose.engine.worker.input_batch import InputBatch
from rose.engine.worker.kv_tensors import KVTensors, available_kv_bytes
from rose.engine.worker.model_runner import ModelRunner
from rose.engine.worker.positions import check_length
from rose.engine.worker.trial import measure_activations
from rose.errors import ConfigError
from rose.log import get_logger
from rose.models.base import CausalLM
from rose.weights.loader import load_dummy, load_model
from rose.weights.resolve import resolve_tokenizer

logger = get_logger(__name__)

# Below this the matrices are so small that threads wait for each other longer than they compute, and on a busy machine
# many times longer: docs/performance-log.md has the figures.
_ONE_THREAD_BELOW_PARAMETERS = 100_000_000

Progress = Callable[[int, int], None]
"""Called with the bytes of weights loaded, and those in all."""


class Worker:
    """The `Executor` of one device."""

    def __init__(
        self,
        config: EngineConfig,
        model: CausalLM,
        *,
        tokenizer_file: Path | None = None,
        load_time_s: float = 0.0,
    ) -> None:
        """Take a loaded model and give it a KV cache. Raises `ConfigError` if the requests asked for do not fit.

        tokenizer_file: the model's vocabulary, for requests with a grammar; without it they are refused.
        """
        self._model = model
        config = config.for_device(model.device.type)
        self.kv_cache_spec = KVCacheSpec.from_layers(model.attention_specs, config.block_size)
        plan = self._plan(config)
        if model.device.type == "cpu":
            torch.set_num_threads(_choose_num_threads(config.num_threads, model.num_parameters))
        logger.info(
            "KV cache: %d blocks of %d tokens, %.3f GiB, in %d group(s) of layers",
            plan.num_blocks,
            config.block_size,
            plan.total_bytes / 2**30,
            len(self.kv_cache_spec.groups),
        )
        self.kv_tensors = KVTensors(self.kv_cache_spec, plan.num_blocks, device=model.device, dtype=model.dtype)
        vocabulary = None if tokenizer_file is None else TokenizerFile(tokenizer_file, model.vocab_size)
        grammars = None if vocabulary is None else Grammars(vocabulary)
        inputs = InputBatch(
            self.kv_tensors,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=plan.max_model_len,
            device=model.device,
        )
        graphs = self._make_graphs(config, inputs, plan.max_model_len)
        self._runner = ModelRunner(model, inputs, grammars, graphs)
        self.config = config.resolved(
            device=str(model.device),
            dtype=_name(model.dtype),
            max_model_len=plan.max_model_len,
            num_blocks=plan.num_blocks,
            seed=random.SystemRandom().getrandbits(63) if config.seed is None else config.seed,
            num_threads=torch.get_num_threads(),
            cuda_graphs="off" if graphs is None else "on",
        )
        logger.info("configuration: %s", self.config)
        self.info = EngineReady(
            max_model_len=plan.max_model_len,
            vocab_size=model.vocab_size,
            block_size=config.block_size,
            num_blocks=plan.num_blocks,
            device=str(model.device),
            dtype=_name(model.dtype),
            num_parameters=model.num_parameters,
            load_time_s=load_time_s,
            takes_grammars=grammars is not None,
        )

    @property
    def model(self) -> CausalLM:
        """The model, for those who look into it, such as benchmarks."""
        return self._model

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The model's own ids that end a text."""
        return self._model.eos_token_ids

    def execute(self, output: SchedulerOutput, meanwhile: Callable[[], None] = lambda: None) -> list[SampledTokens]:
        """Compute one step; see `Executor`."""
        with _current(self._model.device):
            return self._runner.execute(output, meanwhile)

    @contextmanager
    def without_graphs(self) -> Iterator[None]:
        """While the block runs, every step calls the model's layers, for those who watch them, and has no padding."""
        with self._runner.without_graphs():
            yield

    def _plan(self, config: EngineConfig) -> KVCachePlan:
        given = config.num_blocks is not None or config.kv_cache_bytes is not None
        activation_bytes = 0
        if not given and self._model.device.type == "cuda":
            shapes = None if config.cuda_graphs == "off" else _graph_shapes(config, self._model.max_position)
            activation_bytes = measure_activations(self._model, self.kv_cache_spec, config, shapes)
        return plan_kv_cache(
            config,
            self.kv_cache_spec,
            max_position=self._model.max_position,
            available_bytes=available_kv_bytes(config, self._model.device, activation_bytes=activation_bytes),
            dtype_bytes=self._model.dtype.itemsize,
        )

    def _make_graphs(self, config: EngineConfig, inputs: InputBatch, max_model_len: int) -> ForwardGraphs | None:
        """Capture the common shapes. Raises `ConfigError` if graphs are asked for and impossible."""
        if config.cuda_graphs == "off":
            return None
        shapes = _graph_shapes(config, max_model_len)
        graphs = ForwardGraphs(self._model, inputs, shapes, CudaRecorder(self._model.device))
        begin, before = time.monotonic(), torch.cuda.memory_reserved(self._model.device)
        try:
            with forbid_waiting():
                num_graphs = graphs.capture_common()
        except CannotCaptureError as error:
            if config.cuda_graphs == "on":
                raise ConfigError(f"cuda_graphs on is impossible: {error}; take auto or off") from error
            logger.warning("no CUDA graphs, every step is launched kernel by kernel: %s", error)
            return None
        logger.info(
            "CUDA graphs: %d in %.2f s, %.3f GiB",
            num_graphs,
            time.monotonic() - begin,
            (torch.cuda.memory_reserved(self._model.device) - before) / 2**30,
        )
        return graphs


def build_worker(config: EngineConfig, progress: Progress | None = None) -> Worker:
    """Load the model and give it its KV cache.

    Raises `ConfigError` and `CheckpointError`. progress: see `Progress`; not called by every loader.
    """
    start = time.monotonic()
    device = _resolve_device(config.device)
    load = _find_loader(config.load_format)
    check_length(config)
    # A loader of one's own need not know formats.
    formats = {name: getattr(config, name) for name in ("experts", "dense") if getattr(config, name) != "auto"}
    dtype = _resolve_dtype(config.dtype, device)
    with _current(device):
        model = load(config.model, device=device, dtype=dtype, progress=progress, **formats)
        tokenizer_file = _find_tokenizer_file(config)
        return Worker(config, model, tokenizer_file=tokenizer_file, load_time_s=time.monotonic() - start)


def build_core(config: EngineConfig, progress: Progress | None = None) -> EngineCore:
    """Load the model and make an engine that is ready to serve; see `build_worker`."""
    worker = build_worker(config, progress)
    return EngineCore(
        worker,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=worker.config.max_num_batched_tokens,
        enable_prefix_caching=config.enable_prefix_caching,
        seed=worker.config.seed,
    )


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Streams, events and launches of kernels are of the current GPU, which each thread has for itself."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _resolve_device(name: str) -> torch.device:
    available = torch.cuda.is_available()
    device = torch.device(("cuda" if available else "cpu") if name == "auto" else name)
    if device.type == "cuda":
        if not available:
            raise ConfigError(f"device {name}: torch {torch.__version__} finds no GPU here; use device=cpu or auto")
        if (device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(f"device {name}: there are only {torch.cuda.device_count()} GPUs, from cuda:0 on")
        device = torch.device("cuda", device.index or 0)
    return device


def _resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _choose_num_threads(wanted: int | None, num_parameters: int) -> int:
    if wanted is not None:
        return wanted
    if "OMP_NUM_THREADS" not in os.environ and num_parameters < _ONE_THREAD_BELOW_PARAMETERS:
        return 1
    return torch.get_num_threads()


def _find_loader(name: str) -> Callable[..., CausalLM]:
    if name == "auto":
        return load_model
    if name == "dummy":
        return load_dummy
    module, _, function = name.partition(":")
    try:
        loader: Callable[..., CausalLM] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"load_format {name}: {error}") from error
    return loader


def _find_tokenizer_file(config: EngineConfig) -> Path | None:
    if config.load_format not in ("auto", "dummy"):
        return None  # only the loader knows the model
    file = resolve_tokenizer(config.model, config.load_format) / "tokenizer.json"
    return file if file.is_file() else None


def _graph_shapes(config: EngineConfig, max_model_len: int) -> GraphShapes:
    return GraphShapes(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
