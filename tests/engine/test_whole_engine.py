"""The engine around a real, tiny gpt-oss: its tokens and log-probabilities are those that `transformers` gives."""

import random

import pytest

from rose.engine.config import EngineConfig
from rose.engine.core import EngineCore
from rose.engine.sampling_params import SamplingParams
from rose.engine.worker.worker import build_core
from tests.checkpoints import TinyShape, write_checkpoint
from tests.engine.engines import GREEDY, Results, add, run
from tests.models.oracle import make_oracle, oracle_logits

SHAPE = TinyShape()  # window 8, original context 64
LENGTHS = (1, 5, 7, 8, 9, 300)
PROMPTS = {f"{n} tokens": random.Random(n).choices(range(SHAPE.vocab_size), k=n) for n in LENGTHS}


@pytest.fixture(scope="module")
def oracle():
    return make_oracle(SHAPE)


@pytest.fixture(scope="module", params=["hugging_face", "original"])
def checkpoint(request, tmp_path_factory):
    return str(write_checkpoint(tmp_path_factory.mktemp("checkpoint"), SHAPE, layout=request.param))


def make_core(checkpoint: str, **options: int) -> EngineCore:
    return build_core(EngineConfig(model=checkpoint, device="cpu", dtype="float32", block_size=4, **options))


def generate(core: EngineCore, params: dict[str, SamplingParams]) -> Results:
    for name, prompt in PROMPTS.items():
        if name in params:
            add(core, name, prompt, params[name])
    return run(core)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 16, "max_num_seqs": 8},  # chunks, mixed with decode
        {"max_num_batched_tokens": 3, "max_num_seqs": 3},
        {"num_blocks": 95, "max_model_len": 361},  # so few that requests are preempted
    ],
    ids=["roomy", "in chunks", "nearly token by token", "short of blocks"],
)
def test_greedy_tokens_and_logprobs(checkpoint, options, oracle):
    core = make_core(checkpoint, **options)
    results = generate(
        core, dict.fromkeys(PROMPTS, SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, logprobs=3))
    )
    assert (core.scheduler.stats.num_preemptions > 0) == ("num_blocks" in options)
    for name, prompt in PROMPTS.items():
        result = results[name, 0]
        expected = oracle_logits(oracle, prompt + result.token_ids)[len(prompt) - 1 : -1].log_softmax(-1)
        assert expected.argmax(-1).tolist() == result.token_ids
        for entry, row in zip(result.logprobs, expected, strict=True):
            assert entry.logprob == pytest.approx(row.max().item(), abs=1e-4)
            assert [value for _, value in entry.top] == pytest.approx(row.topk(3).values.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 16, "max_num_seqs": 8},
        {"num_blocks": 95, "max_model_len": 361},  # so few that requests are preempted
    ],
    ids=["roomy", "in chunks", "short of blocks"],
)
def test_logprobs_of_prompts(checkpoint, options, oracle):
    core = make_core(checkpoint, **options)
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, prompt_logprobs=2, n=2)
    told = {}
    for _ in range(2):  # the second time all prompts are in the prefix cache
        for name, prompt in PROMPTS.items():
            add(core, name, prompt, params)
            add(core, f"{name}, not asked", prompt, GREEDY)
        while core.has_work:
            for output in core.step().outputs:
                assert output.finish_reason != "error", output.error
                if output.prompt_logprobs is not None:
                    assert (output.index, output.request_id in told) == (0, False)
                    assert output.token_ids
                    told[output.request_id] = output.prompt_logprobs
        assert told.keys() == PROMPTS.keys()
        for name, prompt in PROMPTS.items():
            expected = oracle_logits(oracle, prompt)[:-1].log_softmax(-1)
            entries = told.pop(name)
            assert len(entries) == len(prompt) - 1
            for entry, row, token_id in zip(entries, expected, prompt[1:], strict=True):
                assert entry.logprob == pytest.approx(row[token_id].item(), abs=1e-4)
                assert [value for _, value in entry.top] == pytest.approx(row.topk(2).values.tolist(), abs=1e-4)


def test_a_seeded_request_draws_the_same_alone_and_in_a_batch(checkpoint):
    params = {name: SamplingParams(temperature=1.0, seed=7, max_tokens=40, ignore_eos=True, n=2) for name in PROMPTS}
    together = generate(make_core(checkpoint), params)
    crowded = generate(make_core(checkpoint, num_blocks=95, max_model_len=361), params)
    core = make_core(checkpoint, max_num_batched_tokens=128)
    for name in PROMPTS:
        alone = generate(core, {name: params[name]})
        for index in range(2):
            tokens = alone[name, index].token_ids
            assert len(set(tokens)) > 5, "a draw, not a repetition"
            assert tokens == together[name, index].token_ids == crowded[name, index].token_ids
