"""Steps that are padded to the shape of a graph, with a recorder that keeps the work and does it again."""

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rose.engine.config import EngineConfig
from rose.engine.core import EngineCore
from rose.engine.sampling_params import SamplingParams
from rose.engine.worker.batch_shape import BatchShape, GraphShapes
from rose.engine.worker.cuda_graph import CannotCaptureError, CudaRecorder, ForwardGraphs, forbid_waiting
from rose.engine.worker.worker import Worker, build_core
from rose.errors import ConfigError
from tests.checkpoints import TinyShape, write_checkpoint
from tests.engine.engines import Results, add, check_tokens, make_core, run
from tests.fake_model import FakeModel


@dataclass
class Recorded:
    work: Callable[[], None]
    num_replays: int = 0

    def replay(self) -> None:
        self.num_replays += 1
        self.work()


@dataclass
class Recorder:
    """Keeps what it is given. A real graph would have done nothing yet either."""

    graphs: list[Recorded] = field(default_factory=list)

    def __call__(self, work: Callable[[], None]) -> Recorded:
        self.graphs.append(Recorded(work))
        return self.graphs[-1]


def worker_of(core: EngineCore) -> Worker:
    worker = core._executor
    assert isinstance(worker, Worker)
    return worker


def add_graphs(core: EngineCore) -> tuple[Recorder, ForwardGraphs]:
    """Give a CPU's engine graphs, with a KV cache full of NaN, so that what padding reads and writes would show."""
    worker, recorder = worker_of(core), Recorder()
    for tensor in worker.kv_tensors.tensors:
        tensor.fill_(float("nan"))
    config = worker.config
    shapes = GraphShapes(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len or 0,
    )
    runner = worker._runner
    graphs = ForwardGraphs(runner._model, runner._inputs, shapes, recorder)
    runner._graphs = graphs
    return recorder, graphs


# --- shapes


def shapes(max_num_seqs: int = 100, tokens: int = 16384, max_model_len: int = 100_000) -> GraphShapes:
    return GraphShapes(max_num_seqs=max_num_seqs, max_num_batched_tokens=tokens, max_model_len=max_model_len)


def decode(num_requests: int, longest: int = 50) -> BatchShape:
    return BatchShape(num_requests, num_requests, 1, longest)


@pytest.mark.parametrize(
    ("num_requests", "size"), [(1, 1), (2, 2), (3, 3), (5, 6), (7, 8), (9, 12), (13, 16), (33, 48), (97, 100)]
)
def test_decode_is_padded_to_the_next_size(num_requests: int, size: int) -> None:
    assert shapes().choose(decode(num_requests)) == BatchShape(size, size, 1, 100_000)


@pytest.mark.parametrize(
    ("tokens", "requests", "padded", "slots"),
    [
        (2, 1, 64, 2),
        (64, 1, 64, 2),
        (64, 2, 64, 2),  # nothing is padded, so padding needs no request
        (65, 2, 96, 8),
        (1000, 1, 1024, 2),
        (1025, 7, 1536, 8),
        (1025, 8, 1536, 32),
        (4096, 100, 4096, 101),
        (4095, 100, 4096, 101),
        (4320, 1, 4608, 2),
        (4608, 9, 4608, 32),
        (7681, 1, 8192, 2),
        (8192, 2, 8192, 2),
    ],
)
def test_other_steps_are_padded_to_tokens_and_requests(tokens: int, requests: int, padded: int, slots: int) -> None:
    assert shapes().choose(BatchShape(tokens, requests, 2, 50)) == BatchShape(padded, slots, padded, 100_000)


def test_what_is_too_large_for_a_graph() -> None:
    assert shapes().choose(BatchShape(8193, 1, 8193, 9000)) is None
    # Padding would cost more than a graph saves.
    assert shapes().choose(BatchShape(4097, 1, 4097, 5000)) is None
    assert shapes().choose(BatchShape(4319, 1, 4319, 5000)) is None
    # The largest is what fits, whatever the steps.
    assert shapes(tokens=5000).choose(BatchShape(4700, 1, 4700, 5000)) == BatchShape(5000, 2, 5000, 100_000)
    assert shapes(tokens=5000).choose(BatchShape(5001, 1, 5001, 5001)) is None
    assert shapes(tokens=1000).choose(BatchShape(1000, 1, 1000, 1000)) == BatchShape(1000, 2, 1000, 100_000)
    # No request of a graph may be longer than the engine's block tables, and padding is a request.
    short = shapes(max_model_len=200)
    assert short.choose(BatchShape(193, 3, 100, 150)) == BatchShape(200, 8, 200, 200)
    assert short.choose(BatchShape(201, 3, 100, 150)) is None
    assert shapes(max_model_len=40).choose(BatchShape(30, 1, 30, 30)) is None


@given(st.integers(1, 300), st.integers(1, 20_000), st.integers(2, 10_000), st.integers(1, 9000), st.integers(1, 300))
def test_a_shape_holds_its_step_and_its_padding(
    max_num_seqs: int, tokens: int, max_model_len: int, num_tokens: int, num_requests: int
) -> None:
    tokens = max(tokens, max_num_seqs)
    made = shapes(max_num_seqs, tokens, max_model_len)
    num_requests = min(num_requests, max_num_seqs, num_tokens)
    longest = 1 if num_tokens == num_requests else 2
    shape = made.choose(BatchShape(num_tokens, num_requests, longest, 5))
    for common in made.common():
        assert (common.num_tokens <= tokens) and (common.num_tokens <= made.max_num_tokens)
        assert common.num_requests <= made.max_num_requests <= max_num_seqs + 1
    if shape is None:
        assert longest > 1, "every decode step has a graph"
        largest = min(8192, tokens, max_model_len)
        assert num_tokens > 4096 or num_tokens > largest or largest < 64, "up to 4096 tokens padding costs less"
        return
    padding = shape.num_tokens - num_tokens
    assert 0 <= padding <= (num_tokens / 15 if shape.num_tokens > 4096 else max(64, num_tokens))
    assert shape.num_tokens <= made.max_num_tokens
    assert shape.max_kv_len == max_model_len
    if longest == 1:
        assert shape.num_requests == shape.num_tokens <= max_num_seqs
    else:
        assert shape.num_tokens <= max_model_len
        assert num_requests + (padding > 0) <= shape.num_requests <= made.max_num_requests


# --- padding, with a model in which any wrong slot, position or length changes every token after it


@pytest.mark.parametrize("seed", range(6))
def test_requests_that_come_and_go_get_the_tokens_that_they_would_get_alone(seed: int) -> None:
    rng = random.Random(seed)
    core = make_core(max_num_seqs=7, max_num_batched_tokens=90, num_blocks=120)
    recorder, _ = add_graphs(core)
    shared, results, asked = [7] * 40, Results(), {}
    for index in range(25):
        prompt = [*shared[: rng.choice((0, 0, 17, 40))], *rng.choices(range(50), k=rng.randint(1, 70))]
        asked[str(index)] = prompt
        params = SamplingParams(temperature=0.0, max_tokens=rng.randint(1, 9))
        add(core, str(index), prompt, params)
        for _ in range(rng.randint(0, 3)):
            results.take(core.step().outputs)
    run(core, results)
    for name, prompt in asked.items():
        check_tokens(FakeModel(), prompt, results[name, 0].token_ids, SamplingParams(temperature=0.0))
    assert sum(graph.num_replays for graph in recorder.graphs) > 20
    assert len(recorder.graphs) > 4


def test_each_shape_is_captured_once_and_some_from_the_start() -> None:
    core = make_core(max_num_seqs=4, max_num_batched_tokens=100)
    recorder, graphs = add_graphs(core)
    common = GraphShapes(max_num_seqs=4, max_num_batched_tokens=100, max_model_len=128).common()
    sizes = [(shape.num_tokens, shape.max_query_len) for shape in common]
    assert sizes == [(100, 100), (64, 64), (4, 1), (2, 1), (1, 1)]
    assert graphs.capture_common() == len(common)
    for index in range(3):
        add(core, str(index), [1, 2, 3], SamplingParams(temperature=0.0, max_tokens=5))
    run(core)
    # Three prompts and their padding take more requests than a single prompt's graph has, and then three decode.
    assert len(recorder.graphs) == len(common) + 2
    assert [graph.num_replays for graph in recorder.graphs] == [0, 0, 0, 0, 0, 1, 4]


def test_a_step_is_recorded_without_being_computed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen, forward = FakeModel(), [], FakeModel.forward
    core = make_core(model, max_num_seqs=4, max_num_batched_tokens=100)
    _, graphs = add_graphs(core)
    monkeypatch.setattr(
        FakeModel, "forward", lambda self, batch: (seen.append(len(batch.token_ids)), forward(self, batch))[1]
    )
    graphs.capture_common()
    assert seen == [100, 4], "the first of each kind"
    add(core, "a", [1] * 70, SamplingParams(temperature=0.0, max_tokens=1))
    core.step()
    assert seen == [100, 4, 96], "by the graph"


def test_what_can_only_be_recorded_once_it_was_done_is_done_first() -> None:
    class Loading(Recorder):
        """Records nothing of a kind that was not done before, as if its kernels were to be loaded."""

        num_refused = 0
        is_loaded = False

        def __call__(self, work: Callable[[], None]) -> Recorded:
            if not self.is_loaded:
                self.num_refused, self.is_loaded = self.num_refused + 1, True
                raise CannotCaptureError("not loaded")
            self.is_loaded = False
            return super().__call__(work)

    core = make_core(max_num_seqs=4, max_num_batched_tokens=100)
    _, graphs = add_graphs(core)
    recorder = graphs._record = Loading()
    assert graphs.capture_common() == recorder.num_refused == len(recorder.graphs)
    results = Results()
    add(core, "a", [1] * 70, SamplingParams(temperature=0.0, max_tokens=3))
    run(core, results)
    check_tokens(FakeModel(), [1] * 70, results["a", 0].token_ids, SamplingParams(temperature=0.0))
    assert recorder.num_refused == len(recorder.graphs) == 6


class Refusing:
    """torch's graphs and allocator where `capture_end` fails: the allocator then goes on with the pool it has."""

    def __init__(self) -> None:
        self.recording: list[int] = []
        self.is_invalid = False

    def capture_begin(self, pool: int, capture_error_mode: str) -> None:
        if pool in self.recording:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self.recording.append(pool)
        self.is_invalid = False

    def capture_end(self) -> None:
        if self.is_invalid:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.recording.pop()

    def end_pool(self, device: int, pool: int) -> None:
        if pool not in self.recording:
            raise RuntimeError("not currently recording to mempool_id")
        self.recording.remove(pool)

    def wait(self) -> None:
        self.is_invalid = True
        raise RuntimeError("operation not permitted when stream is capturing")


def test_a_capture_that_failed_spoils_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, pools = Refusing(), iter(range(10))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    monkeypatch.setattr(torch.cuda, "Stream", MagicMock())
    monkeypatch.setattr(torch.cuda, "current_stream", MagicMock())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: cuda)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", cuda.end_pool)
    record = CudaRecorder(torch.device("cuda", 0))
    seen: list[int] = []

    def note() -> None:
        seen.extend(cuda.recording)

    def run_short() -> None:
        raise torch.OutOfMemoryError("no memory")

    record(note)
    with pytest.raises(torch.OutOfMemoryError):
        record(run_short)
    record(note)
    with pytest.raises(CannotCaptureError, match="not permitted"):
        record(cuda.wait)
    record(note)
    assert seen == [0, 0, 1], "one pool, but for the one that was left open"
    assert not cuda.recording, "the allocator can give back memory again"


@given(st.integers(1, 300), st.integers(64, 20_000))
def test_the_start_captures_the_largest_of_each_kind_and_few_others(max_num_seqs: int, tokens: int) -> None:
    made = shapes(max_num_seqs, max(tokens, max_num_seqs))
    common = made.common()
    assert len(common) == len(set(common)) <= 12
    assert max(shape.num_tokens for shape in common) == made.max_num_tokens
    assert max(shape.num_requests for shape in common if shape.max_query_len == 1) == max_num_seqs
    for shape in common:
        assert made.choose(shape) == shape, "there are such steps"


@pytest.mark.parametrize("fault", [torch.OutOfMemoryError("no memory"), CannotCaptureError("it waits")])
def test_a_shape_that_cannot_be_captured_is_run_without_from_then_on(fault: Exception) -> None:
    class Failing(Recorder):
        num_asked = 0

        def __call__(self, work: Callable[[], None]) -> Recorded:
            self.num_asked += 1
            raise fault

    core = make_core(max_num_seqs=4, max_num_batched_tokens=100)
    _, graphs = add_graphs(core)
    recorder = graphs._record = Failing()
    results, prompts = Results(), {"a": [1, 2, 3], "b": [4, 5]}
    for name, prompt in prompts.items():
        add(core, name, prompt, SamplingParams(temperature=0.0, max_tokens=6))
        run(core, results)
        check_tokens(FakeModel(), prompt, results[name, 0].token_ids, SamplingParams(temperature=0.0))
    # Of a prompt's shape and of one that decodes, and again after having computed it unless memory is what lacks.
    assert recorder.num_asked == (2 if isinstance(fault, torch.OutOfMemoryError) else 4)
    with pytest.raises(type(fault)):
        graphs.capture_common()


def test_without_graphs_a_step_is_not_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = FakeModel(), []
    core = make_core(model)
    recorder, _ = add_graphs(core)
    forward = FakeModel.forward
    monkeypatch.setattr(
        FakeModel, "forward", lambda self, batch: (seen.append(len(batch.token_ids)), forward(self, batch))[1]
    )
    add(core, "a", [1, 2, 3], SamplingParams(temperature=0.0, max_tokens=3))
    with worker_of(core).without_graphs():
        core.step()
    core.step()
    assert seen == [3, 1]
    assert len(recorder.graphs) == 1
    with pytest.raises(RuntimeError), worker_of(core).without_graphs():
        raise RuntimeError
    assert worker_of(core)._runner._graphs is not None


# --- a real model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield str(write_checkpoint(tmp_path_factory.mktemp("checkpoint"), TinyShape(), layout="hugging_face"))


def test_padding_changes_no_logit_of_a_real_model(checkpoint: str) -> None:
    def outputs(*, with_graphs: bool) -> Results:
        config = EngineConfig(
            model=checkpoint, device="cpu", dtype="float32", block_size=4, max_num_batched_tokens=100, max_num_seqs=6
        )
        core = build_core(config)
        if with_graphs:
            recorder, _ = add_graphs(core)
        params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=2)
        results = Results()
        for index in range(9):
            prompt = random.Random(index).choices(range(TinyShape().vocab_size), k=1 + 37 * index % 130)
            add(core, str(index), prompt, params)
            results.take(core.step().outputs)
        run(core, results)
        if with_graphs:
            assert sum(graph.num_replays for graph in recorder.graphs) > 20
        return results

    padded, plain = outputs(with_graphs=True), outputs(with_graphs=False)
    for key, result in plain.items():
        assert padded[key].token_ids == result.token_ids
        for a, b in zip(padded[key].logprobs, result.logprobs, strict=True):
            assert a.logprob == pytest.approx(b.logprob, abs=1e-5)


# --- what a configuration may ask for


def test_configuration() -> None:
    with pytest.raises(ConfigError, match="cuda_graphs must be one of auto, on, off, not 'yes'"):
        EngineConfig(model="m", cuda_graphs="yes")
    with pytest.raises(ConfigError, match="cuda_graphs on needs a GPU"):
        Worker(EngineConfig(model="m", device="cpu", cuda_graphs="on"), FakeModel())
    assert Worker(EngineConfig(model="m", device="cpu"), FakeModel()).config.cuda_graphs == "off"
    assert EngineConfig(model="m").for_device("cuda").cuda_graphs == "auto"


def test_waiting_for_the_device_is_told_from_other_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    monkeypatch.setattr("torch.cuda.get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr("torch.cuda.set_sync_debug_mode", modes.append)
    with pytest.raises(CannotCaptureError, match="reference kernels"), forbid_waiting():
        raise RuntimeError("called a synchronizing CUDA operation")
    with pytest.raises(torch.OutOfMemoryError), forbid_waiting():
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert modes == ["error", 0, "error", 0]
