"""Floors against those worked out by hand for one H200, and against sums taken the slow way."""

import subprocess
import sys

import pytest

from rose.plan.machine import H200, MachineRates, known_rates
from rose.plan.roofline import NumberFormats, Parallelism, decode_work, prefill_work, step_work
from rose.plan.shape import GPT_OSS_20B, GPT_OSS_120B, ModelShape, experts_touched, visible_pairs, visible_tokens

SMALL = ModelShape(
    vocab_size=100,
    hidden_size=10,
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=5,
    layer_windows=(3, None),
    num_experts=8,
    experts_per_token=2,
    intermediate_size=7,
)


@pytest.mark.parametrize(
    ("shape", "length", "floor_s"),
    [
        (GPT_OSS_120B, 8192, 0.060),
        (GPT_OSS_120B, 32768, 0.391),
        (GPT_OSS_120B, 65536, 1.18),
        (GPT_OSS_120B, 128000, 3.80),
        (GPT_OSS_20B, 8192, 0.040),
        (GPT_OSS_20B, 32768, 0.260),
        (GPT_OSS_20B, 65536, 0.79),
        (GPT_OSS_20B, 128000, 2.53),
    ],
)
def test_prefill_floors(shape, length, floor_s):
    assert prefill_work(shape, length).floor_s(H200) == pytest.approx(floor_s, rel=0.01)


@pytest.mark.parametrize(
    ("shape", "batch", "tokens_per_s"),
    [
        (GPT_OSS_120B, 1, 810),
        (GPT_OSS_120B, 8, 1790),
        (GPT_OSS_120B, 32, 2650),
        (GPT_OSS_120B, 64, 3640),
        (GPT_OSS_120B, 128, 5380),
        (GPT_OSS_20B, 1, 1099),
        (GPT_OSS_20B, 8, 3200),
        (GPT_OSS_20B, 32, 7240),
        (GPT_OSS_20B, 64, 10700),
        (GPT_OSS_20B, 128, 14200),
    ],
)
def test_decode_floors(shape, batch, tokens_per_s):
    assert batch / decode_work(shape, 8192, batch).floor_s(H200) == pytest.approx(tokens_per_s, rel=0.01)


def test_a_small_model_by_hand():
    work = {op.name: op for op in decode_work(SMALL, 20, 3).ops}
    # (4 + 2 + 2) heads of 5 rows in, 4 heads of 5 out, by 10, in 2 layers, of 2 bytes
    assert work["projections"].num_bytes == (40 + 20) * 10 * 2 * 2
    assert work["projections"].flops == 2 * (40 + 20) * 10 * 2 * 3
    assert work["router"].num_bytes == 8 * 10 * 2 * 2
    assert work["unembedding"].flops == 2 * 100 * 10 * 3
    touched = 8 * (1 - 0.75**3)
    assert work["experts"].num_bytes == pytest.approx(2 * touched * 3 * 7 * 10 * 4.25 / 8)
    assert work["experts"].flops == 2 * 2 * 2 * 3 * 7 * 10 * 3
    # one full layer of 20 positions, one of 3; keys and values of 2 heads of 5, of 2 bytes
    assert work["full attention"].num_bytes == 3 * 20 * 2 * 2 * 5 * 2
    assert work["window attention"].num_bytes == 3 * 3 * 2 * 2 * 5 * 2
    assert work["full attention"].flops == 3 * 20 * 4 * 4 * 5
    assert work["window attention"].flops == 3 * 3 * 4 * 4 * 5


@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize(("query_len", "kv_len"), [(1, 1), (1, 9), (9, 9), (4, 9), (2, 3), (0, 5)])
def test_visible_pairs_by_counting(query_len, kv_len, window):
    seen = [
        {key for key in range(position + 1) if window is None or key > position - window}
        for position in range(kv_len - query_len, kv_len)
    ]
    assert visible_pairs(query_len, kv_len, window) == sum(map(len, seen))
    if query_len:
        assert visible_tokens(query_len, kv_len, window) == (kv_len if window is None else len(set.union(*seen)))


def test_chunks_do_the_flops_of_the_whole():
    whole = step_work(SMALL, [(50, 50)])
    chunks = [step_work(SMALL, [(20, 20)]), step_work(SMALL, [(20, 40)]), step_work(SMALL, [(10, 50)])]
    logits = 2 * SMALL.unembedding_weights
    assert sum(chunk.flops - logits for chunk in chunks) == pytest.approx(whole.flops - logits)


def test_experts_touched():
    assert experts_touched(32, 4, 1) == pytest.approx(4)
    assert experts_touched(32, 4, 0) == 0
    assert experts_touched(32, 4, 10_000) == pytest.approx(32)


def test_spreading_over_gpus():
    one = {op.name: op for op in decode_work(GPT_OSS_120B, 8192, 64).ops}

    def spread(**sizes):
        return {op.name: op for op in decode_work(GPT_OSS_120B, 8192, 64, parallelism=Parallelism(**sizes)).ops}

    tp = spread(tp=4)
    assert tp["projections"].num_bytes == one["projections"].num_bytes / 4
    assert tp["experts"].num_bytes == one["experts"].num_bytes / 4
    assert tp["router"].num_bytes == one["router"].num_bytes
    dp = spread(dp=4)
    assert dp["projections"].num_bytes == one["projections"].num_bytes
    assert dp["full attention"].num_bytes == one["full attention"].num_bytes / 4
    # a quarter of the tokens still reaches much more than a quarter of the experts
    assert one["experts"].num_bytes / 4 < dp["experts"].num_bytes < one["experts"].num_bytes
    ep = spread(dp=4, expert_parallel=True)
    assert ep["experts"].num_bytes == one["experts"].num_bytes / 4
    assert ep["experts"].flops == one["experts"].flops / 4


def test_formats_and_rates():
    bf16 = NumberFormats(experts="bf16", gemm="bf16")
    assert prefill_work(GPT_OSS_20B, 8192, formats=bf16).floor_s(H200) == pytest.approx(0.0712, rel=0.01)
    slow = MachineRates("a machine", {"fp32": 1e9}, 1e12, "made up")
    assert slow.gemm_rate("fp8") == 1e9  # what it lacks it does in what it has
    assert known_rates("NVIDIA H200 NVL") is H200
    assert known_rates("cpu") is None


def test_no_torch():
    code = "import sys, rose.plan.roofline; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
