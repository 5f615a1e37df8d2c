"""The latency benchmarks on the bundled model: their rows, whole and failed."""

import pytest
import torch

from rose.bench.ceilings import measure_ceilings
from rose.bench.decode import DecodePoint, longest_request
from rose.bench.points import decode_point, prefill_point
from rose.bench.prefill import PrefillPoint
from rose.bench.results import Configuration, Result, read_results
from rose.bench.rig import engine_config
from rose.bench.session import RunSettings, Session
from rose.cli.main import app
from rose.errors import ConfigError

MODEL = Configuration(model="rose-demo", device="cpu", max_num_batched_tokens=64, block_size=16, label="demo")


def make_session(**settings):
    config = engine_config(MODEL, max_model_len=300, max_num_seqs=4, num_blocks=100, seed=3)
    return Session(MODEL, config, RunSettings(seed=3, command="rose bench", **settings))


@pytest.fixture(scope="module")
def session():
    return make_session()


def test_prefill(session):
    result = prefill_point(session, 100, 2, repeats=2, warmup=0).result
    assert (result.kind, result.status, result.point) == ("prefill", "ok", {"length": 100, "batch": 2})
    ttft_s = result.metrics["ttft_s"]
    assert result.metrics["ttft_min_s"] <= ttft_s <= result.metrics["ttft_max_s"]
    assert result.metrics["input_tokens_per_s"] == pytest.approx(200 / ttft_s)
    assert result.metrics["usd_per_million_input_tokens"] == pytest.approx(3 / 3600 * ttft_s / 200 * 1e6)
    assert result.floor["measured_over_floor"] == pytest.approx(ttft_s / result.floor["floor_s"])
    assert "measured ceilings" in result.floor["rates"]
    assert result.routing["num_experts"] == 8
    assert result.routing["num_tokens"] == 200
    assert result.machine["engine"]["dtype"] == "float32"
    assert Result.from_json(result.to_json()) == result


def test_every_prompt_is_new_and_computed_in_full(session, monkeypatch):
    point = PrefillPoint(session.rig, 50, 1)
    seen = []
    execute = session.rig.worker.execute

    def spy(output, meanwhile):
        seen.extend((new.token_ids, output.scheduled[0].num_tokens) for new in output.new)
        return execute(output, meanwhile)

    monkeypatch.setattr(session.rig.worker, "execute", spy)
    point.run()
    point.run()
    (first, num_first), (second, num_second) = seen
    assert num_first == num_second == 50
    assert first[:16] != second[:16]


@pytest.mark.parametrize("fill", ["random", "prefill"])
def test_decode(session, fill):
    result = decode_point(session, 150, 3, steps=2, repeats=2, warmup=1, temperature=1.0, fill=fill).result
    assert (result.status, result.reason) == ("ok", None)
    metrics = result.metrics
    step_s = metrics["step_ms"] / 1e3
    assert metrics["steps"] == 4
    assert metrics["tokens_per_s_per_user"] == pytest.approx(1 / step_s)
    assert metrics["tokens_per_s"] == pytest.approx(3 / step_s)
    assert metrics["usd_per_million_output_tokens"] == pytest.approx(3 / 3600 * step_s / 3 * 1e6)
    assert 0 < metrics["schedule_ms"] < metrics["step_ms"]
    assert metrics["host_gap_ms"] is None  # there is no GPU to leave idle
    assert 150 < metrics["context_mean"] < 150 + longest_request(150, 3, 5, 64) - 150
    assert result.routing["num_tokens"] == 3 * 4


def test_decode_attends_to_the_whole_context(session, monkeypatch):
    seen = []
    forward = session.rig.worker.model.forward
    monkeypatch.setattr(session.rig.worker.model, "forward", lambda batch: (seen.append(batch), forward(batch))[1])
    point = DecodePoint(session.rig, 100, 2, num_steps=3, temperature=0.0, fill="random")
    assert seen == []  # the context was not computed
    point.step()
    [batch] = seen
    assert batch.max_query_len == 1
    assert all(length > 100 for length in batch.seq_lens.tolist())
    keys = batch.layers[1].key[batch.layers[1].block_table[0, :6].long()]
    assert keys.std() == pytest.approx(1.0, rel=0.05)
    used = batch.layers[1].block_table[:, :7].tolist()
    shared = set(used[0]) & set(used[1])
    assert not shared  # each request reads memory of its own


@pytest.mark.parametrize(
    ("context", "batch", "reason"),
    [
        (400, 1, "tokens a request; the engine has room for 300"),
        (100, 9, "the engine runs 4 requests"),
        (250, 4, "GiB of KV cache"),
    ],
)
def test_a_decode_point_that_does_not_fit(session, context, batch, reason):
    result = decode_point(session, context, batch, steps=1, repeats=1, warmup=0, temperature=1.0, fill="random").result
    assert result.status == "unfit"
    assert reason in result.reason
    assert result.metrics == {}


def test_a_prefill_point_that_does_not_fit(session):
    assert prefill_point(session, 300, 1, repeats=1, warmup=0).result.status == "unfit"
    result = prefill_point(session, 290, 9, repeats=1, warmup=0).result
    assert "KV blocks" in result.reason


def test_a_collapsed_router_makes_a_row_invalid(session, monkeypatch):
    layer = session.rig.worker.model.blocks[2].mlp
    bias = torch.where(torch.arange(8) < 4, 100.0, 0.0)
    monkeypatch.setattr(layer.router, "bias", torch.nn.Parameter(bias, requires_grad=False))
    monkeypatch.setattr("rose.bench.routing.COLLAPSED_BELOW", 0.55)  # with 4 of 8 experts all is not far from half
    result = prefill_point(session, 60, 1, repeats=1, warmup=0).result
    assert result.status == "invalid"
    assert "the router collapsed" in result.reason
    assert result.metrics["ttft_s"] > 0


def test_a_profile(tmp_path):
    session = make_session(profile_dir=tmp_path, profile_steps=2, with_ceilings=False)
    measured = decode_point(session, 40, 2, steps=1, repeats=1, warmup=0, temperature=1.0, fill="random")
    assert measured.result.floor is None
    assert measured.trace.is_file()
    operations = {line.name: line for line in measured.profile.operations}
    assert {"projections", "experts", "full attention", "window attention", "unembedding"} <= operations.keys()
    assert operations["experts"].flops_per_s > 0
    assert operations["experts"].ceiling_share is None


def test_a_spread_that_the_engine_lacks_is_refused():
    with pytest.raises(ConfigError, match="data_parallel_size=2: the engine of this version has no such option"):
        engine_config(Configuration(model="rose-demo", data_parallel_size=2))


def test_ceilings():
    ceilings = measure_ceilings(torch.device("cpu"))
    assert ceilings.copy_bytes_per_s > 1e8
    [gemm] = ceilings.gemms
    assert gemm.number_format == "fp32"
    rates = ceilings.as_rates()
    assert rates.gemm_rate("fp8") == ceilings.best("fp32") == gemm.flops_per_s
    assert ceilings.best("fp8") is None


def test_the_commands(tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    common = ["--device", "cpu", "--repeats", "1", "--out", str(out), "--no-ceilings", "--gpu-hour-price", "2"]
    run("prefill", "rose-demo", "--lengths", "16,32", "--warmup", "0", *common)
    run("decode", "rose-demo", "--context", "32", "--batches", "1,2", "--steps", "1", "--warmup", "0", *common)
    run("ceilings", "--device", "cpu", "--out", str(out))
    rows = read_results([out])
    assert [row.kind for row in rows] == ["prefill", "prefill", "decode", "decode", "ceilings"]
    assert all(row.status == "ok" for row in rows)
    assert rows[0].metrics["gpu_hour_usd"] == 2
    printed = capsys.readouterr().out
    assert "## Prefill: rose-demo, one prompt" in printed
    assert "## Decode: rose-demo, context 32" in printed


def test_bad_numbers_are_refused():
    with pytest.raises(ConfigError, match="--lengths must be at least 1"):
        run("prefill", "rose-demo", "--lengths", "0,5")
    with pytest.raises(ConfigError, match="--repeats must be at least 1"):
        run("decode", "rose-demo", "--repeats", "0")


def run(*arguments):
    app(["bench", *arguments], exit_on_error=False, result_action="return_value")
