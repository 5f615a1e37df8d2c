"""The engine as a frontend sees it: one final output for everything, whatever happens."""

import logging
from typing import Any

import pytest

from rose.engine.core import run_core
from rose.engine.messages import Abort, AddRequest, EngineDied, EngineOutputs, FromEngine, Shutdown, ToEngine
from rose.engine.sampling_params import SamplingParams
from rose.engine.worker import model_runner
from tests.engine.engines import GREEDY, Results, add, check_tokens, generate, make_core, run
from tests.fake_model import FakeModel

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]


def test_greedy_tokens_are_the_models() -> None:
    core = make_core()
    check_tokens(FakeModel(), PROMPT, generate(core, PROMPT), GREEDY)


def test_the_core_works_while_a_device_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    def note(owner: Any, name: str) -> None:
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *arguments: (happened.append(name), function(*arguments))[1])

    core = make_core(max_num_batched_tokens=8)
    note(FakeModel, "forward")
    note(core.scheduler, "prepare_update")
    note(model_runner, "as_sampled")
    add(core, "r", PROMPT)
    [request] = core.scheduler.unfinished()
    core.step()  # of 9 tokens, so that none is sampled
    assert happened == ["forward", "prepare_update"]
    assert len(request.block_hashes) == 2
    core.step()
    assert happened[2:] == ["forward", "prepare_update", "as_sampled"]


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 8])
def test_chunked_prefill_changes_nothing(budget: int) -> None:
    prompt = list(range(30))
    expected = generate(make_core(), prompt)
    core = make_core(max_num_seqs=1, max_num_batched_tokens=budget)
    assert generate(core, prompt) == expected
    assert core.scheduler.stats.num_steps == -(-30 // budget) + GREEDY.max_tokens - 1


def test_seeded_tokens_are_the_same_alone_in_a_batch_and_after_preemption() -> None:
    params = [SamplingParams(seed=seed, max_tokens=20, top_p=0.9) for seed in range(6)]
    prompts = [[seed, 7, 8, 9] for seed in range(6)]
    alone = [generate(make_core(), prompt, one) for prompt, one in zip(prompts, params, strict=True)]
    for num_blocks in (100, 17):
        core = make_core(num_blocks=num_blocks, max_model_len=24)
        for i, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
            add(core, str(i), prompt, one)
        results = run(core)
        assert [results[str(i), 0].token_ids for i in range(6)] == alone
        assert (core.scheduler.stats.num_preemptions > 0) == (num_blocks == 17)


def test_unseeded_requests_differ_and_an_engine_seed_repeats_them() -> None:
    params = SamplingParams(max_tokens=10)
    core = make_core()
    first, second = generate(core, PROMPT, params), generate(core, PROMPT, params)
    assert first != second
    assert generate(make_core(), PROMPT, params) == first


def test_completions_of_one_prompt() -> None:
    core = make_core(max_num_batched_tokens=8)
    params = SamplingParams(n=4, seed=10, max_tokens=6)
    prompt = list(range(25))
    add(core, "r", prompt, params)
    results = run(core)
    for index in range(4):
        alone = generate(make_core(), prompt, SamplingParams(seed=10 + index, max_tokens=6))
        assert results["r", index].token_ids == alone
    # The prompt is computed once: each follower only adds its last, partial block.
    assert [results["r", index].finals[0].num_cached_tokens for index in range(4)] == [0, 24, 24, 24]


@pytest.mark.parametrize("index", [None, 0, 1])
@pytest.mark.parametrize("num_steps", [0, 1, 2, 3, 5, 8])
def test_abort_at_any_point(num_steps: int, index: int | None) -> None:
    core = make_core(max_num_seqs=4, max_num_batched_tokens=4)
    add(core, "gone", PROMPT, SamplingParams(n=3, max_tokens=20, temperature=0.0))
    add(core, "stays", PROMPT)
    results = Results()
    for _ in range(num_steps):
        results.take(core.step().outputs)
    core.abort(Abort(request_id="gone", index=index))
    run(core, results)
    for i in range(3):
        aborted = index is None or index == i
        assert len(results["gone", i].finals) == 1
        assert results["gone", i].finish_reason == ("abort" if aborted else "length")
    assert results["stays", 0].token_ids == generate(make_core(), PROMPT)


def test_abort_carries_its_reason_and_unknown_ones_are_ignored() -> None:
    core = make_core()
    add(core, "r", PROMPT)
    core.abort(Abort(request_id="r", finish_reason="stop"))
    core.abort(Abort(request_id="r"))
    core.abort(Abort(request_id="nobody"))
    core.abort(Abort(request_id="r", index=5))
    assert run(core)["r", 0].finish_reason == "stop"


def test_stop_ids_end_a_request_and_are_its_last_token() -> None:
    tokens = generate(make_core(), PROMPT)
    stop = tokens[3]
    end = tokens.index(stop) + 1
    params = SamplingParams(temperature=0.0, max_tokens=8, stop_token_ids=(stop,))
    core = make_core()
    add(core, "r", PROMPT, params)
    result = run(core)["r", 0]
    assert (result.token_ids, result.finish_reason) == (tokens[:end], "stop")
    by_model = make_core(FakeModel(eos_token_ids=(stop,)))
    assert generate(by_model, PROMPT) == tokens[:end]
    ignoring = SamplingParams(temperature=0.0, max_tokens=8, stop_token_ids=(stop,), ignore_eos=True)
    assert generate(by_model, PROMPT, ignoring) == tokens


def test_min_tokens_holds_stop_ids_back() -> None:
    params = SamplingParams(seed=1, max_tokens=30, min_tokens=6, stop_token_ids=tuple(range(1, 50)))
    tokens = generate(make_core(), PROMPT, params)
    assert tokens[:6] == [0] * 6
    assert len(tokens) < 30


def test_an_end_of_text_id_outside_the_vocabulary_never_ends_the_engine() -> None:
    """Small models are often made with the config of a large one; `min_tokens` masks the ids of stops."""
    params = SamplingParams(temperature=0.0, max_tokens=8, min_tokens=4)
    assert generate(make_core(FakeModel(eos_token_ids=(200_002, 10**30))), PROMPT, params) == generate(
        make_core(), PROMPT, params
    )


def test_max_tokens_none_fills_the_context() -> None:
    core = make_core(max_model_len=20)
    add(core, "r", PROMPT, SamplingParams(temperature=0.0))
    result = run(core)["r", 0]
    assert len(PROMPT) + len(result.token_ids) == 20
    assert result.finish_reason == "length"


def test_logprobs_come_with_their_tokens() -> None:
    core = make_core(max_num_batched_tokens=8)
    add(core, "r", PROMPT, SamplingParams(temperature=0.0, max_tokens=5, logprobs=2))
    add(core, "s", PROMPT, SamplingParams(temperature=0.0, max_tokens=5))
    results = run(core)
    assert len(results["r", 0].logprobs) == 5
    assert results["s", 0].logprobs == []
    for token_id, logprobs in zip(results["r", 0].token_ids, results["r", 0].logprobs, strict=True):
        assert logprobs.top[0] == (token_id, logprobs.logprob)


@pytest.mark.parametrize(
    ("prompt", "params", "code", "texts"),
    [
        ([], GREEDY, "empty_prompt", ["no tokens"]),
        ([0, 50], GREEDY, "invalid_token_id", ["50", "49"]),
        ([-1], GREEDY, "invalid_token_id", ["-1"]),
        ([0, 1 << 70], GREEDY, "invalid_token_id", [str(1 << 70), "49"]),
        ([0] * 32, GREEDY, "context_length_exceeded", ["32"]),
        ([0] * 40, SamplingParams(), "context_length_exceeded", ["40", "32"]),
        ([0] * 20, SamplingParams(max_tokens=13), "context_length_exceeded", ["20", "13", "32", "12"]),
        ([0], SamplingParams(stop_token_ids=(99,)), "invalid_token_id", ["stop_token_ids", "99"]),
        ([0], SamplingParams(logit_bias={99: 1.0}), "invalid_token_id", ["logit_bias", "99"]),
        ([0], SamplingParams(temperature=9.0), None, ["temperature"]),
        ([0], SamplingParams(n=0), None, ["n must be"]),
        ([0], SamplingParams(n=100_000), None, ["n must be"]),
        ([0] * 40, SamplingParams(n=2), "context_length_exceeded", ["40"]),
    ],
)
def test_refusals(prompt: list[int], params: SamplingParams, code: str | None, texts: list[str]) -> None:
    core = make_core(max_model_len=32)
    add(core, "bad", prompt, params)
    add(core, "good", PROMPT)
    results = run(core)
    assert results["good", 0].token_ids == generate(make_core(), PROMPT)
    bad = [result for (request_id, _), result in results.items() if request_id == "bad"]
    assert len(bad) == min(max(params.n, 1), 128)
    for result in bad:
        [final] = result.finals
        assert final.finish_reason == "error"
        assert final.error is not None
        assert final.error.code == code
        assert all(text in final.error.message for text in texts), final.error.message


def test_the_longest_request_is_served() -> None:
    core = make_core(max_model_len=32)
    assert len(generate(core, [0] * 31, SamplingParams(max_tokens=1))) == 1
    assert len(generate(core, [0] * 20, SamplingParams(max_tokens=12))) == 12


def test_bad_logits_end_only_their_request_and_are_not_cached() -> None:
    core = make_core(FakeModel(poison_token=49))
    bad = [*range(20, 30), 49]
    add(core, "bad", bad, SamplingParams(n=2, max_tokens=4))
    add(core, "good", PROMPT)
    results = run(core)
    assert results["good", 0].token_ids == generate(make_core(), PROMPT)
    for index in range(2):
        [final] = results["bad", index].finals
        assert final.finish_reason == "error"
        assert final.error is not None
        assert "finite" in final.error.message
        assert final.num_cached_tokens == 0


class Pipe:
    """Both ends of a core's loop: messages to deliver, one batch a turn, and what came back."""

    def __init__(self, *batches: list[ToEngine]) -> None:
        self.batches = list(batches)
        self.sent: list[FromEngine] = []

    def receive(self, wait: bool) -> list[ToEngine]:
        if not self.batches:
            return [Shutdown()] if wait else []
        return self.batches.pop(0)


def test_the_loop_serves_until_shutdown() -> None:
    request = AddRequest(request_id="r", prompt_token_ids=PROMPT, sampling_params=GREEDY)
    pipe = Pipe([request])
    core = make_core()
    run_core(core, pipe.receive, pipe.sent.append)
    results = Results()
    for message in pipe.sent:
        assert isinstance(message, EngineOutputs)
        results.take(message.outputs)
    assert results["r", 0].finish_reason == "length"
    assert message.stats.num_running == message.stats.num_waiting == 0


def test_shutdown_ends_open_requests() -> None:
    request = AddRequest(request_id="r", prompt_token_ids=PROMPT, sampling_params=GREEDY)
    pipe = Pipe([request], [Shutdown()])
    core = make_core()
    run_core(core, pipe.receive, pipe.sent.append)
    last = pipe.sent[-1]
    assert isinstance(last, EngineOutputs)
    assert [output.finish_reason for output in last.outputs] == ["abort"]
    core.scheduler.check_integrity()


def test_a_step_that_fails_is_the_engines_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("rose"), "propagate", True)  # whatever an earlier test has set up
    request = AddRequest(request_id="r", prompt_token_ids=[49], sampling_params=GREEDY)
    pipe = Pipe([request])
    run_core(make_core(FakeModel(crash_token=49)), pipe.receive, pipe.sent.append)
    [died] = pipe.sent
    assert isinstance(died, EngineDied)
    assert "the crash token" in died.message
    assert not died.is_user_error
    assert any(record.exc_info for record in caplog.records)


def test_stats_count() -> None:
    core = make_core(num_blocks=41, max_num_batched_tokens=16)
    add(core, "r", list(range(20)))
    stats = core.step().stats
    assert (stats.num_running, stats.num_waiting, stats.num_scheduled_tokens, stats.num_steps) == (1, 0, 16, 1)
    assert 0 < stats.kv_cache_usage < 1
    run(core)
    generate(core, list(range(20)))
    stats = core.scheduler.stats
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (40, 16)
    assert stats.num_running == stats.num_waiting == stats.kv_cache_usage == 0
    # Each request: 16 tokens of the prompt (cached the second time), the other 4, and 7 single ones.
    assert stats.steps_by_size == (14, 2, 1, *[0] * 11)
    assert sum(stats.steps_by_size) == stats.num_steps
