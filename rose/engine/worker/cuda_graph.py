"""CUDA graphs of whole forward passes: one launch instead of hundreds, which a short step would wait for.

A graph repeats launches with the very arguments they had, so it belongs to one `BatchShape`, reads the step's inputs
where `InputBuffers` has them, and leaves logits and tokens in memory that all graphs share. What is in between comes
from one pool, which is as large as the largest graph needs.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rose.engine.worker.batch_shape import BatchShape, GraphShapes
from rose.engine.worker.input_batch import InputBatch
from rose.engine.worker.input_buffers import StepInputs
from rose.kernels.sampling.op import sample_tokens
from rose.log import get_logger
from rose.models.base import CausalLM

logger = get_logger(__name__)


class Graph(Protocol):
    """Recorded work."""

    def replay(self) -> None:
        """Do it again, after what the device has been given so far."""
        ...


Record = Callable[[Callable[[], None]], Graph]
"""Records what its argument gives the device to do, without doing it. Raises `CannotCaptureError` if that cannot be."""


class CudaRecorder:
    """`Record` for a GPU. All graphs take their memory from one pool: only one may run at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def __call__(self, work: Callable[[], None]) -> Graph:
        """Record `work`. Raises `CannotCaptureError` if it does something that graphs do not allow, such as waiting."""
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        # torch.cuda.graph would collect garbage and give back cached memory, each time.
        with torch.cuda.stream(self._stream):
            try:
                # relaxed: work that was never done has kernels to load, which any other mode takes for a mistake. What
                # would make a graph wrong is refused in every mode, as it concerns the stream itself.
                graph.capture_begin(pool=self._pool, capture_error_mode="relaxed")
                try:
                    work()
                except BaseException:
                    with suppress(RuntimeError):  # what the work says is why
                        graph.capture_end()
                    raise
                graph.capture_end()
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                raise CannotCaptureError(str(error).strip().partition("\n")[0]) from error
            finally:
                self._end_pool()
        return graph

    def _end_pool(self) -> None:
        """Where a capture failed, torch's allocators may still record into the pool, and refuse to begin with it again.

        The device's, which would also give back no cached memory when it runs short, can be told to end. The host's
        cannot, so another pool is taken.
        """
        with suppress(RuntimeError):  # it had ended
            torch._C._cuda_endAllocateToPool(self._device.index, self._pool)
            self._pool = torch.cuda.graph_pool_handle()


class CannotCaptureError(Exception):
    """A model's forward pass cannot be captured; the text says why."""


@contextmanager
def forbid_waiting() -> Iterator[None]:
    """Raise `CannotCaptureError` where torch waits for the GPU in the block, as some reference kernels make it."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        text = "some of the model's kernels are reference kernels, which wait for the GPU"
        raise CannotCaptureError(text) from error
    finally:
        torch.cuda.set_sync_debug_mode(before)


@dataclass(frozen=True, slots=True)
class _Captured:
    inputs: StepInputs
    graph: Graph


class ForwardGraphs:
    """The graphs of a model, by shape. A shape is captured when it is first needed, or by `capture_common`.

    One that cannot be captured while requests wait, for want of memory above all, goes without from then on.
    """

    def __init__(self, model: CausalLM, inputs: InputBatch, shapes: GraphShapes, record: Record) -> None:
        self._model = model
        self._inputs = inputs
        self._shapes = shapes
        self._record = record
        self._logits = torch.empty(shapes.max_num_requests, model.vocab_size, dtype=torch.float32, device=model.device)
        self._chosen = torch.empty(2, shapes.max_num_requests, dtype=torch.int64, device=model.device)
        self._captured: dict[BatchShape, _Captured] = {}
        self._given_up: set[BatchShape] = set()

    def choose(self, step: BatchShape) -> BatchShape | None:
        """The shape to pad a step to; None if it should run as it is."""
        shape = self._shapes.choose(step)
        return None if shape in self._given_up else shape

    def inputs(self, shape: BatchShape) -> StepInputs:
        """Where a step of this shape has its inputs."""
        captured = self._captured.get(shape)
        return self._inputs.buffers.inputs(shape) if captured is None else captured.inputs

    def run(self, shape: BatchShape, inputs: StepInputs) -> tuple[Tensor, Tensor]:
        """Compute the step whose inputs were filled in.

        Returns the logits of its sampling rows, [num_requests, vocab_size] float32, and what `sample_tokens` makes of
        them, [2, num_requests]. Both hold until the next step.
        """
        try:
            captured = self._captured.get(shape) or self._capture(shape, inputs)
        except (CannotCaptureError, torch.OutOfMemoryError) as error:
            logger.warning("no CUDA graph of %s, whose steps are launched kernel by kernel: %s", shape, error)
            self._given_up.add(shape)
            self._work(shape, inputs)()
        else:
            captured.graph.replay()
        return self._logits[: shape.num_requests], self._chosen[:, : shape.num_requests]

    @torch.inference_mode()
    def capture_common(self) -> int:
        """Capture the shapes that are worth it from the start; returns how many. Raises `CannotCaptureError`.

        The first decode step and the first other step are computed before, which tells of kernels that wait, and
        prepares the libraries that others share.
        """
        shapes, kinds = self._shapes.common(), set()
        for shape in shapes:
            inputs = self._inputs.buffers.inputs(shape)
            self._inputs.fill(inputs, [])
            if (is_decode := shape.max_query_len == 1) not in kinds:
                kinds.add(is_decode)
                self._work(shape, inputs)()
            self._capture(shape, inputs)
        return len(shapes)

    def _work(self, shape: BatchShape, inputs: StepInputs) -> Callable[[], None]:
        """What computes the step."""

        def work() -> None:
            hidden = self._model.forward(inputs.batch)
            logits = self._model.compute_logits(hidden[inputs.sampling_rows])
            self._logits[: shape.num_requests].copy_(logits)
            self._chosen[:, : shape.num_requests].copy_(sample_tokens(logits, inputs.temperatures, inputs.uniforms))

        return work

    def _capture(self, shape: BatchShape, inputs: StepInputs) -> _Captured:
        """Record the step. What is done once, such as loading a kernel, is done meanwhile, and not recorded."""
        begin = time.perf_counter()
        work = self._work(shape, inputs)
        try:
            graph = self._record(work)
        except CannotCaptureError:
            work()  # in case something done once is to blame
            graph = self._record(work)
        captured = self._captured[shape] = _Captured(inputs, graph)
        logger.debug("captured a graph of %s in %.3f s", shape, time.perf_counter() - begin)
        return captured
