"""The load generator: on a scripted server, and its arithmetic on canned exchanges."""

import itertools
import json
import random

import pytest

from rose.bench.load.arrivals import poisson_arrivals, random_words
from rose.bench.load.client import Exchange, RequestShape, _take_line
from rose.bench.load.metrics import load_metrics, parse_slo
from rose.bench.load.run import PromptLength
from rose.bench.results import PointFailed, read_results
from rose.chat.tokenizer import Tokenizer
from rose.cli.main import app
from rose.engine.messages import RequestFailure
from rose.errors import ConfigError
from tests.chat.tokenizers_for_tests import tiny_tokenizer
from tests.fakes import FakeEngine, by_token
from tests.server.live import live_server

VLLM_KEYS = {
    "date backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency duration completed "
    "failed total_input_tokens total_output_tokens request_throughput request_goodput output_throughput "
    "total_token_throughput max_output_tokens_per_s max_concurrent_requests"
}
LATENCIES = {f"{s}_{m}_ms" for s in ("mean", "median", "std", "p99") for m in ("ttft", "tpot", "itl", "e2el")}


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(tiny_tokenizer())


def answering(tokenizer, text="<|channel|>final<|message|>one two three four five six<|return|>", before_s=0.02):
    """A script: think for a while, then a token at a time."""
    steps = by_token(tokenizer.encode_with_special(text))
    return lambda request: [before_s, *steps]


def serve(url, *arguments):
    app(
        ["bench", "serve", "--base-url", url, *map(str, arguments)],
        exit_on_error=False,
        result_action="return_value",
    )


def test_a_load_on_a_server(tokenizer, tmp_path, capsys):
    engine = FakeEngine(answering(tokenizer), step_s=0.002)
    out, folder = tmp_path / "rows.jsonl", tmp_path / "results"
    with live_server(engine, tokenizer) as server:
        goals = ["--slo", "ttft:10000", "e2el:20000"]
        lengths = ["--input-len", 40, "--output-len", 12, "--num-prompts", 8]
        serve(server.url, "--rates", "200,inf", *lengths, *goals, "--out", out, "--result-dir", folder)
    rows = read_results([out])
    assert [(row.kind, row.status, row.point["request_rate"]) for row in rows] == [
        ("serve", "ok", 200.0),
        ("serve", "ok", "inf"),
    ]
    for row in rows:
        metrics = row.metrics
        [keys] = VLLM_KEYS
        assert set(keys.split()) | LATENCIES <= metrics.keys()
        assert (metrics["completed"], metrics["failed"], metrics["errors"]) == (8, 0, [])
        assert metrics["model_id"] == "rose-test"
        assert metrics["request_goodput"] == metrics["request_throughput"] == pytest.approx(8 / metrics["duration"])
        assert metrics["total_output_tokens"] == 8 * 12
        assert metrics["median_ttft_ms"] > 20
        assert metrics["median_e2el_ms"] > metrics["median_ttft_ms"]
    written = [json.loads(path.read_text()) for path in folder.iterdir()]
    assert sorted(str(result["request_rate"]) for result in written) == ["200.0", "inf"]
    prompts = [request.prompt_token_ids for request in engine.submitted]
    assert len(prompts) == 2 + 16  # two trials of the prompt's length
    assert all(request.sampling_params.ignore_eos for request in engine.submitted)
    assert len({tuple(prompt) for prompt in prompts}) == len(prompts)
    assert "## Serving: rose-test" in capsys.readouterr().out


def test_a_load_is_open_loop(tokenizer, tmp_path):
    """Requests are sent when they are due though nobody answers."""
    engine = FakeEngine(answering(tokenizer, before_s=0.5))
    out = tmp_path / "rows.jsonl"
    with live_server(engine, tokenizer) as server:
        serve(server.url, "--rates", "inf", "--num-prompts", 12, "--output-len", 2, "--input-len", 20, "--out", out)
    [row] = read_results([out])
    assert row.metrics["max_concurrent_requests"] == 12
    assert row.metrics["duration"] < 3


def test_failures_are_counted_with_their_reason(tokenizer, tmp_path):
    answer = answering(tokenizer)
    count = iter(range(100))

    def script(request):
        number = next(count)
        return [RequestFailure(message="the engine is tired", code="tired")] if number in (3, 5) else answer(request)

    out = tmp_path / "rows.jsonl"
    with live_server(FakeEngine(script), tokenizer) as server:
        serve(server.url, "--rates", "100", "--num-prompts", 6, "--output-len", 4, "--input-len", 20, "--out", out)
    [row] = read_results([out])
    assert row.status == "ok"
    assert (row.metrics["completed"], row.metrics["failed"]) == (4, 2)
    assert any("tired" in error for error in row.metrics["errors"])


def test_tokens_without_text_are_an_answer(tokenizer, tmp_path):
    out = tmp_path / "rows.jsonl"
    with live_server(FakeEngine(answering(tokenizer)), tokenizer) as server:
        serve(server.url, "--rates", "inf", "--num-prompts", 2, "--output-len", 2, "--input-len", 20, "--out", out)
    [row] = read_results([out])
    assert (row.metrics["completed"], row.metrics["total_output_tokens"]) == (2, 4)
    assert row.metrics["mean_tpot_ms"] == 0


def test_no_server():
    nobody = "http://127.0.0.1:9"  # the discard port
    with pytest.raises(PointFailed, match="cannot learn a model's name"):
        serve(nobody)
    with pytest.raises(PointFailed, match="does not answer a trial request: ConnectError"):
        serve(nobody, "--model", "m")


@pytest.mark.parametrize("url", ["foo", "http://[bad", "http://a:b", "http://a\x00b"])
def test_no_address_of_a_server(url):
    with pytest.raises((PointFailed, ConfigError), match=r"--base-url|cannot learn"):
        serve(url)


def test_a_key_that_no_header_can_hold():
    with pytest.raises(ConfigError, match="cannot call"):
        serve("http://127.0.0.1:9", "--api-key", "schlüssel")


@pytest.mark.parametrize(
    "line",
    ["[]", "3", "null", "{", '{"choices": 3}', '{"choices": [3]}', '{"choices": [{"delta": 3}]}', '{"usage": 3}',
     '{"usage": {"prompt_tokens": "many"}}', '{"usage": {"completion_tokens": [1]}}'],
)  # fmt: skip
def test_garbage_fails_one_request(line):
    record = Exchange(due_s=0.0)
    with pytest.raises(ValueError, match=r".+"):
        _take_line(record, f"data: {line}")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--rates", "1,0"),
        ("--rates", "nan"),
        ("--max-concurrency", 0),
        ("--max-concurrency", -1),
        ("--timeout", 0),
        ("--timeout", "nan"),
        ("--temperature", "nan"),
        ("--num-prompts", 0),
    ],
)
def test_loads_that_cannot_be(arguments):
    with pytest.raises(ConfigError, match=arguments[0]):
        serve("http://127.0.0.1:9", *arguments)


def test_a_server_that_refuses(tokenizer):
    with (
        live_server(FakeEngine(answering(tokenizer)), tokenizer, api_keys=("secret",)) as server,
        pytest.raises(PointFailed, match="401"),
    ):
        serve(server.url, "--model", "rose-test", "--api-key", "wrong")


def test_metrics_by_hand():
    exchanges = [
        # first token after 1 s, then gaps of 1, 2 and 3 s; 7 tokens in 4 chunks
        Exchange(due_s=0.0, sent_s=0.0, chunk_times=[1.0, 2.0, 4.0, 7.0], input_tokens=10, output_tokens=7),
        Exchange(due_s=1.0, sent_s=1.5, chunk_times=[2.0], input_tokens=20, output_tokens=1),
        Exchange(due_s=2.0, sent_s=2.0, error="503: busy"),
    ]
    metrics = load_metrics(exchanges, 10.0, {"ttft": 800.0, "tpot": 50.0})
    assert (metrics["completed"], metrics["failed"], metrics["errors"]) == (2, 1, ["503: busy"])
    assert (metrics["total_input_tokens"], metrics["total_output_tokens"]) == (30, 8)
    assert metrics["request_throughput"] == 0.2
    assert metrics["output_throughput"] == 0.8
    assert metrics["total_token_throughput"] == 3.8
    assert metrics["request_goodput"] == 0.1  # the second: 500 ms, and no token after the first
    assert metrics["mean_ttft_ms"] == 750
    assert metrics["mean_tpot_ms"] == metrics["p99_tpot_ms"] == 1000  # 6 s for the 6 tokens after the first
    assert (metrics["mean_itl_ms"], metrics["median_itl_ms"]) == (2000, 2000)
    assert metrics["mean_e2el_ms"] == pytest.approx((7000 + 500) / 2)
    assert metrics["max_concurrent_requests"] == 2
    assert metrics["max_output_tokens_per_s"] == pytest.approx(1.75 + 1)  # both in the third second
    assert metrics["max_lateness_ms"] == 500


def test_metrics_of_nothing():
    metrics = load_metrics([Exchange(due_s=0.0, error="gone")], 1.0, {})
    assert metrics["completed"] == 0
    assert metrics["median_ttft_ms"] is None
    assert metrics["request_goodput"] is None
    json.dumps(metrics, allow_nan=False)


def test_arrivals_are_poisson():
    arrivals = poisson_arrivals(50.0, 20000, random.Random(1))
    gaps = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
    average = sum(gaps) / len(gaps)
    assert arrivals[0] == 0
    assert average == pytest.approx(1 / 50, rel=0.03)
    # An exponential's standard deviation is its mean, and 63 % of it lie below.
    assert sum(gap < average for gap in gaps) / len(gaps) == pytest.approx(0.632, rel=0.02)
    assert poisson_arrivals(float("inf"), 3, random.Random(1)) == [0.0] * 3
    assert len(poisson_arrivals(5.0, 1, random.Random(1))) == 1
    for rate in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="rate"):
            poisson_arrivals(rate, 3, random.Random(1))


def test_prompts():
    rng = random.Random(0)
    assert len({random_words(8, rng) for _ in range(1000)}) == 1000
    assert len(random_words(8, rng).split()) == 8
    assert PromptLength(10.0, 2.0).num_words(50) == 20
    assert PromptLength(100.0, 1.0).num_words(50) == 1


@pytest.mark.parametrize("bad", ["ttft", "ttft:", "ttft:-1", "itl:5", "ttft:x", "ttft:nan"])
def test_bad_goals(bad):
    with pytest.raises(ConfigError, match="a goal must be"):
        parse_slo(["tpot:50", bad])


def test_bodies():
    chat = RequestShape("m", "chat/completions", 5, extra={"temperature": 0.5}).body("hi")
    assert chat["messages"] == [{"role": "user", "content": "hi"}]
    assert (chat["max_completion_tokens"], chat["ignore_eos"], chat["temperature"]) == (5, True, 0.5)
    plain = RequestShape("m", "completions", 5, ignore_eos=False).body("hi")
    assert (plain["prompt"], plain["max_tokens"]) == ("hi", 5)
    assert "ignore_eos" not in plain
