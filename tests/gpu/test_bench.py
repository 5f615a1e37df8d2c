"""The benchmarks on a GPU: what a CPU cannot show of them."""

import pytest
import torch

from rose.bench.ceilings import measure_ceilings
from rose.bench.points import decode_point, prefill_point
from rose.bench.results import Configuration
from rose.bench.rig import engine_config
from rose.bench.session import RunSettings, Session

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def test_ceilings_are_of_a_gpu():
    ceilings = measure_ceilings(torch.device("cuda"), is_quick=True)
    assert ceilings.copy_bytes_per_s > 1e11
    assert ceilings.best("bf16") > 1e13
    if torch.cuda.get_device_capability() >= (8, 9):
        assert ceilings.best("fp8") > ceilings.best("bf16")


def test_points(tmp_path):
    model = Configuration(model="rose-demo", device="cuda")
    config = engine_config(model, max_model_len=1024, max_num_seqs=8, num_blocks=300, seed=0)
    session = Session(model, config, RunSettings(profile_dir=tmp_path))
    prefill = prefill_point(session, 500, 2, repeats=2, warmup=1)
    assert prefill.result.status == "ok", prefill.result.reason
    decode = decode_point(session, 700, 8, steps=4, repeats=2, warmup=2, temperature=1.0, fill="random")
    assert decode.result.status == "ok", decode.result.reason
    metrics = decode.result.metrics
    assert 0 < metrics["gpu_busy_ms"] < metrics["step_ms"]
    assert metrics["host_gap_ms"] == pytest.approx(metrics["step_ms"] - metrics["gpu_busy_ms"])
    for measured in (prefill, decode):
        assert measured.result.floor["measured_over_floor"] > 1
        assert measured.trace.is_file()
        operations = {line.name for line in measured.profile.operations}
        assert {"projections", "full attention", "window attention", "experts", "unembedding"} <= operations
        assert not any(line.name.startswith("aten::") for line in measured.profile.kernels)
