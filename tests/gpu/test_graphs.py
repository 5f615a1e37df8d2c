"""CUDA graphs: what they compute is what their kernels compute one by one, whatever requests come and go."""

import random
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from rose.engine.config import EngineConfig
from rose.engine.core import EngineCore
from rose.engine.sampling_params import SamplingParams
from rose.engine.scheduler_output import ScheduledRequest, SchedulerOutput
from rose.engine.worker.batch_shape import BatchShape, GraphShapes
from rose.engine.worker.cuda_graph import CannotCaptureError, CudaRecorder, ForwardGraphs
from rose.engine.worker.model_runner import ModelRunner
from rose.engine.worker.trial import measure_activations
from rose.engine.worker.worker import Worker, build_core
from rose.weights.loader import load_from
from rose.weights.synthetic import synthetic_source
from tests.engine.engines import Results, add, run
from tests.gpu.test_sampling import check_tokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]

MAX_NUM_SEQS = 24


class Compared(ModelRunner):
    """A runner that computes each step again, kernel by kernel, where its graph had its inputs."""

    shapes: set[BatchShape]
    num_eager: int

    def _forward(self, scheduled: Sequence[ScheduledRequest], num_sampling: int) -> tuple[Tensor, Tensor] | None:
        computed = super()._forward(scheduled, num_sampling)
        shape = None if self._graphs is None else self._graphs.choose(self._inputs.shape(scheduled))
        if shape is None or self._graphs is None:
            self.num_eager += 1
            return computed
        self.shapes.add(shape)
        if computed is not None:
            logits, chosen = computed
            inputs = self._graphs.inputs(shape)
            hidden = self._model.forward(inputs.batch)
            expected = self._model.compute_logits(hidden[inputs.sampling_rows])
            difference = (logits - expected[:num_sampling]).abs().max().item()
            assert difference == 0, f"{shape}: off by {difference}"
            assert logits.isfinite().all()
            check_tokens(logits, inputs.temperatures[:num_sampling], inputs.uniforms[:num_sampling], chosen)
        return computed


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    model = load_from(
        synthetic_source("gpt-oss-20b", num_layers=2), device="cuda", dtype=torch.bfloat16, experts="fp8", dense="fp8"
    )
    config = EngineConfig(
        model="gpt-oss-20b",
        device="cuda",
        cuda_graphs="on",
        max_num_seqs=MAX_NUM_SEQS,
        max_model_len=9000,
        num_blocks=600,
    )
    yield Worker(config, model)


def compared_core(worker: Worker) -> tuple[EngineCore, Compared]:
    runner = worker._runner
    runner._inputs.apply(SchedulerOutput(dropped=list(runner._inputs._held)))  # what the last core left
    compared = Compared(runner._model, runner._inputs, None, runner._graphs)
    compared.shapes, compared.num_eager = set(), 0
    worker._runner = compared
    core = EngineCore(
        worker, max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=worker.config.max_num_batched_tokens, seed=0
    )
    return core, compared


def prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(199_000), k=length)


def test_decode_of_every_size_and_prompts_of_every_length(worker: Worker) -> None:
    core, compared = compared_core(worker)
    for num_requests in range(1, MAX_NUM_SEQS + 1):
        for index in range(num_requests):
            length = 1 + (index * 7919 + num_requests) % 700
            add(core, f"{num_requests} {index}", prompt(index, length), SamplingParams(temperature=0.0, max_tokens=2))
        run(core)
    for length in (1, 2, 63, 64, 65, 100, 256, 700, 1024, 1500, 2049, 4000, 4096, 4097, 4608, 6000, 8192, 8900):
        add(core, f"prompt of {length}", prompt(length, length), SamplingParams(temperature=0.0, max_tokens=2))
        run(core)
    decode = {shape.num_requests for shape in compared.shapes if shape.max_query_len == 1}
    assert decode == {1, 2, 3, 4, 6, 8, 12, 16, 24}
    assert {64, 96, 128, 256, 768, 1024, 1536, 3072, 4096, 4608, 6144, 8192} <= {
        shape.num_tokens for shape in compared.shapes if shape.max_query_len > 1
    }
    assert compared.num_eager == 2, "prompts of 4097 and 8900 tokens have no graph"


def test_requests_that_come_and_go_with_shared_prefixes_and_chunks(worker: Worker) -> None:
    core, compared = compared_core(worker)
    core.scheduler._max_num_batched_tokens = 700  # so that prompts take several steps, beside others that decode
    shared, rng, results = prompt(0, 3000), random.Random(1), Results()
    for index in range(60):
        tokens = [*shared[: rng.choice((0, 0, 500, 1280, 3000))], *prompt(index, rng.randint(1, 400))]
        params = SamplingParams(temperature=index % 2, max_tokens=rng.randint(1, 30), ignore_eos=True)
        add(core, str(index), tokens, params)
        for _ in range(rng.randint(0, 4)):
            results.take(core.step().outputs)
    run(core, results)
    assert any(final.num_cached_tokens for result in results.values() for final in result.finals)
    assert len({shape.num_requests for shape in compared.shapes if shape.max_query_len > 1}) > 1, "mixed steps"


def test_a_capture_that_failed_spoils_no_other() -> None:
    record = CudaRecorder(torch.device("cuda", 0))
    x = torch.ones(1 << 20, device="cuda")
    y = torch.zeros_like(x)

    def wait() -> None:
        x.sum().item()

    def double() -> None:
        y.copy_(x * 2)

    for _ in range(2):
        with pytest.raises(CannotCaptureError, match="captur"):
            record(wait)
        y.zero_()
        graph = record(double)
        assert y.eq(0).all(), "recorded, not done"
        graph.replay()
        assert y.eq(2).all()
    torch.cuda.empty_cache()  # which torch refuses as long as it believes that it records


def test_a_step_takes_no_more_memory_than_its_trial(worker: Worker) -> None:
    shapes = GraphShapes(max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=16384, max_model_len=9000)
    trials = [
        measure_activations(worker.model, worker.kv_cache_spec, worker.config, graph_shapes)
        for graph_shapes in (None, shapes)
    ]
    core, compared = compared_core(worker)
    for index in range(MAX_NUM_SEQS):
        params = SamplingParams(top_p=0.9, logprobs=0, max_tokens=1)
        add(core, str(index), prompt(index, 16384 // MAX_NUM_SEQS), params)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run(core)
    peak = torch.cuda.max_memory_allocated() - before
    assert compared.num_eager == 1
    assert peak <= trials[0] + (32 << 20)
    # Graphs were captured before, in memory of their own; this is about the largest, and no other.
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    graphs = ForwardGraphs(worker.model, worker._runner._inputs, shapes, CudaRecorder(torch.device("cuda", 0)))
    graphs.capture_common()
    torch.cuda.empty_cache()
    pool = torch.cuda.memory_reserved() - before
    print(f"eager: {peak / 2**20:.0f} of {trials[0] / 2**20:.0f} MiB tried; ", end="")
    print(f"graphs: {pool / 2**20:.0f} of {(trials[1] - trials[0]) / 2**20:.0f} MiB")
    assert pool <= (trials[1] - trials[0]) + (64 << 20), "segments, and what cuBLAS keeps for a stream"


def test_greedy_answers_of_rose_demo_are_the_same_with_and_without() -> None:
    from rose.chat.conversation import Conversation, Message
    from rose.chat.registry import get_format
    from rose.chat.tokenizer import load_tokenizer
    from rose.weights.resolve import resolve_checkpoint

    chat = get_format("harmony", load_tokenizer(resolve_checkpoint("rose-demo")))
    questions = ("What is 127 + 385?", "12 * 31", "who are you?", "What is 900 - 77? Answer as JSON.", "hello", "7 - 9")
    answers = []
    for mode in ("on", "off"):
        core = build_core(EngineConfig(model="rose-demo", device="cuda", cuda_graphs=mode, num_blocks=300))
        assert core.info.device.startswith("cuda")
        for question in questions:
            tokens = chat.render(Conversation((Message("user", question),)))
            add(core, question, tokens, SamplingParams(temperature=0.0, max_tokens=100))
        results = run(core)
        answers.append({question: results[question, 0].token_ids for question in questions})
    assert answers[0] == answers[1]


def test_packed_mxfp4_is_computed_by_kernels_that_wait_and_gets_no_graphs() -> None:
    core = build_core(EngineConfig(model="rose-demo", device="cuda", experts="mxfp4", num_blocks=50))
    assert core._executor.config.cuda_graphs == "off"  # type: ignore[attr-defined]
