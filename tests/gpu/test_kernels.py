"""The fast kernels on a Hopper GPU against float32 references: max and relative RMS error, and bitwise repeats.

Tolerances belong to the formats: bfloat16 results are rounded by 2**-9 relative, 0.0017 RMS; E4M3 steps are 2**-4.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rose.kernels.kv_write.op import kv_write_
from rose.kernels.linear_fp8.op import linear_fp8, linear_fp8_float32
from rose.kernels.moe_fp8.op import moe_fp8
from rose.kernels.moe_fp8.reference import moe_fp8_reference
from rose.kernels.paged_attention.op import paged_attention
from rose.kernels.paged_attention.reference import paged_attention_reference
from rose.kernels.rmsnorm.op import add_rmsnorm_
from rose.kernels.rmsnorm.reference import rmsnorm_reference
from rose.kernels.rope.op import rope_
from rose.kernels.rope.reference import rope_reference
from rose.numerics.fp8 import encode_rows, round_tokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]

LN_2 = math.log(2.0)
# An activation near the middle of two E4M3 numbers, which are up to 2**-3 apart, goes either way on a difference of the
# matrix units' last bits: measured 0.010, against 0.027 that rounding to E4M3 itself costs.
E4M3_FLIPS = 0.015
E4M3_FLIPS_OF_ONE_TOKEN = 0.03  # few numbers to average over
RAGGED = ((64, 300), (1, 129), (77, 77), (3, 256), (500, 1000), (25, 25))


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, device="cuda") * scale).to(dtype)


def assert_near(out: Tensor, expected: Tensor, rms: float) -> None:
    """Relative RMS error at most `rms`; the worst place is in the message."""
    assert out.shape == expected.shape
    difference = (out.float() - expected.float()).abs()
    assert not difference.isnan().any(), f"NaN at {difference.isnan().nonzero()[:4].tolist()}"
    error = (difference.norm() / expected.float().norm()).item()
    worst = int(difference.argmax())
    where = [int(i) for i in torch.unravel_index(torch.tensor(worst), difference.shape)]
    assert error <= rms, f"relative RMS error {error:.5f}, worst {difference.max():.4g} at {where}"


def twice(run: Callable[[], Tensor]) -> Tensor:
    """The result; the same bits both times, or a race."""
    first, second = run(), run()
    assert torch.equal(first, second), "differs between identical runs"
    return first


class Batch:
    """A ragged batch over scattered blocks. Blocks that nobody owns are NaN."""

    def __init__(self, requests: tuple[tuple[int, int], ...], *, block_size: int, heads: tuple[int, int] = (64, 8)):
        self.query_lens, self.kv_lens = zip(*requests, strict=True)
        num_q_heads, num_kv_heads = heads
        per_request = [-(-kv // block_size) for kv in self.kv_lens]
        num_blocks = sum(per_request) + 3
        shape = (num_blocks, block_size, num_kv_heads, 64)
        self.key, self.value = normal(*shape), normal(*shape)
        order = torch.randperm(num_blocks - 1) + 1
        self.table = torch.full((len(requests), max(per_request) + 1), -1, dtype=torch.int32)
        owned = torch.zeros(num_blocks, dtype=torch.bool)
        start = 0
        for request, count in enumerate(per_request):
            blocks = order[start : start + count]
            self.table[request, :count] = blocks.int()
            owned[blocks] = True
            start += count
        for cache in (self.key, self.value):
            cache[~owned.cuda()] = math.nan
        self.table = self.table.cuda()
        self.query = normal(sum(self.query_lens), num_q_heads, 64)
        self.sinks = torch.randn(num_q_heads, device="cuda") * 1.5

    def run(self, attend: Callable[..., Tensor], sliding_window: int | None, scale: float, **extra: object) -> Tensor:
        return attend(
            self.query,
            self.key,
            self.value,
            self.table,
            sinks=self.sinks,
            scale=scale,
            sliding_window=sliding_window,
            **extra,
        )

    def check(self, sliding_window: int | None, scale: float) -> None:
        lens = {
            "cu_seqlens_q": torch.tensor([0, *self.query_lens]).cumsum(0).int().cuda(),
            "seq_lens": torch.tensor(self.kv_lens, dtype=torch.int32).cuda(),
            "max_query_len": max(self.query_lens),
            "max_kv_len": max(self.kv_lens),
        }
        out = twice(lambda: self.run(paged_attention, sliding_window, scale, **lens))
        wide = [x.float() for x in (self.query, self.key, self.value)]
        kept = self.query, self.key, self.value
        self.query, self.key, self.value = wide
        exact = {"query_lens": self.query_lens, "kv_lens": self.kv_lens}
        expected = self.run(paged_attention_reference, sliding_window, scale, **exact)
        self.query, self.key, self.value = kept
        assert_near(out, expected, 0.003)


@pytest.mark.parametrize("block_size", [16, 64, 128, 256])
@pytest.mark.parametrize("window", [None, 128, 5])
def test_prefill_attention_of_a_ragged_batch(block_size: int, window: int | None) -> None:
    batch = Batch(RAGGED, block_size=block_size)
    batch.query *= 0.18  # as head_dim**-0.5 * log2(e) makes it
    batch.check(window, LN_2)


@pytest.mark.parametrize(
    "requests", [((2, 2),), ((24, 24),), ((129, 129),), ((1000, 5000),), ((2, 4097), (1, 1))], ids=str
)
@pytest.mark.parametrize("window", [None, 128])
def test_prefill_attention_at_the_edges_of_tiles(requests: tuple[tuple[int, int], ...], window: int | None) -> None:
    batch = Batch(requests, block_size=128)
    batch.query *= 0.18
    batch.check(window, LN_2)


@pytest.mark.parametrize("block_size", [16, 128])
def test_prefill_attention_reads_no_block_that_has_left_the_window(block_size: int) -> None:
    batch = Batch(((64, 5000), (300, 700)), block_size=block_size)
    batch.query *= 0.18
    for request, (num_queries, num_keys) in enumerate(zip(batch.query_lens, batch.kv_lens, strict=True)):
        count = (num_keys - num_queries - 127) // block_size
        for cache in (batch.key, batch.value):
            cache[batch.table[request, :count].long()] = math.nan
        batch.table[request, :count] = -1
    batch.check(128, LN_2)


@pytest.mark.parametrize("factor", [8.0, 60.0], ids=["scores of tens", "scores of hundreds"])
@pytest.mark.parametrize("window", [None, 128])
def test_prefill_attention_when_the_maximum_keeps_growing(factor: float, window: int | None) -> None:
    batch = Batch(((700, 900), (300, 300)), block_size=128)
    batch.query *= 0.18 * factor
    batch.sinks *= factor
    batch.key *= torch.linspace(0.1, 1.5, batch.key.shape[0], device="cuda").view(-1, 1, 1, 1).bfloat16()
    batch.check(window, LN_2)


@pytest.mark.parametrize("window", [None, 128])
def test_prefill_attention_with_single_rows_beyond_what_needs_no_shift(window: int | None) -> None:
    batch = Batch(((700, 900), (300, 300)), block_size=128)
    batch.query *= 0.18
    batch.query[130, 9] *= 100  # one row of one head
    batch.query[500:503, 40] *= 1000
    batch.check(window, LN_2)


@pytest.mark.parametrize("sink", [-1e4, -70.0, 90.0, 300.0])
def test_prefill_attention_with_sinks_far_from_the_scores(sink: float) -> None:
    batch = Batch(((70, 900), (300, 300)), block_size=128)
    batch.query *= 0.18
    batch.sinks[::3] = sink
    batch.check(None, LN_2)
    batch.query *= 0  # every score is 0
    batch.check(128, LN_2)


def test_prefill_attention_far_below_a_sink_that_is_far_below_zero() -> None:
    batch = Batch(((200, 200),), block_size=128)
    key = normal(64)
    batch.key[batch.table[0, :2].long()] = key  # all keys alike, so that a query has one score
    batch.query[:] = -3 * key  # around -190 in log2
    batch.sinks[:] = torch.linspace(-250, -120, 64)
    batch.check(None, LN_2)


def test_prefill_attention_of_the_triton_backend_alone() -> None:
    Batch(RAGGED, block_size=128, heads=(8, 2)).check(None, 0.125)  # a group of 4, scores not yet in log2


@pytest.mark.parametrize("window", [None, 128])
@pytest.mark.parametrize("kv_lens", [(1,), (4097,), (300, 17, 8192, 1, 64, 65)], ids=str)
def test_decode_attention(kv_lens: tuple[int, ...], window: int | None) -> None:
    batch = Batch(tuple((1, kv) for kv in kv_lens), block_size=64)
    batch.query *= 0.18
    batch.check(window, LN_2)


def test_rope_kv_write_and_norm() -> None:
    qkv = normal(333, 80 * 64)
    heads = qkv.unflatten(1, (80, 64))
    query, key, value = heads.split((64, 8, 8), dim=1)
    expected = qkv.clone().unflatten(1, (80, 64)).split((64, 8, 8), dim=1)
    table, positions = torch.randn(5000, 64, device="cuda"), torch.randint(5000, (333,), device="cuda")
    rope_reference(expected[0], expected[1], positions, table, 0.18)
    rope_(query, key, positions, table, query_scale=0.18)
    assert_near(heads, torch.cat(expected, dim=1), 0.0005)
    caches = [torch.zeros(8, 64, 8, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    slots = torch.randperm(512, device="cuda")[:333]
    kv_write_(key, value, *caches, slots)
    assert torch.equal(caches[0].flatten(0, 1)[slots], key)
    assert torch.equal(caches[1].flatten(0, 1)[slots], value)
    x, add, weight = normal(77, 2880), normal(77, 2880), torch.rand(2880, device="cuda")
    total = x + add
    out = add_rmsnorm_(x, add, weight, eps=1e-5)
    assert torch.equal(x, total)
    assert_near(out, rmsnorm_reference(total.float(), weight, eps=1e-5), 0.003)


@pytest.mark.parametrize("num_tokens", [1, 77, 1000])
def test_linear_fp8(num_tokens: int) -> None:
    x, weight, bias = normal(num_tokens, 2880), encode_rows(normal(5120, 2880, scale=0.02)), normal(5120)
    expected = round_tokens(x.float()) @ weight.dequantize(torch.float32).t() + bias.float()
    assert_near(twice(lambda: linear_fp8(x, weight, bias)), expected, 0.003)


@pytest.mark.parametrize("num_tokens", [1, 33])
def test_linear_fp8_of_few_rows_in_float32(num_tokens: int) -> None:
    x, weight = normal(num_tokens, 2880), encode_rows(normal(20112, 2880, scale=0.02))
    expected = round_tokens(x.float()) @ weight.dequantize(torch.float32).t()
    assert_near(twice(lambda: linear_fp8_float32(x, weight)), expected, 0.001)


@pytest.mark.parametrize("num_experts", [32, 128])
@pytest.mark.parametrize("num_tokens", [1, 2, 77, 1000, 5000])
def test_moe_fp8_at_the_published_sizes(num_tokens: int, num_experts: int) -> None:
    x, logits = normal(num_tokens, 2880), normal(num_tokens, num_experts)
    gate_up = encode_rows(normal(num_experts, 5760, 2880, scale=0.03))
    down = encode_rows(normal(num_experts, 2880, 2880, scale=0.03))
    biases = normal(num_experts, 5760, scale=0.3), normal(num_experts, 2880, scale=0.3)
    arguments = (logits, gate_up, biases[0], down, biases[1])
    options = {"experts_per_token": 4, "swiglu_alpha": 1.702}
    out = twice(lambda: moe_fp8(x, *arguments, **options))
    tolerance = E4M3_FLIPS_OF_ONE_TOKEN if num_tokens == 1 else E4M3_FLIPS
    assert_near(out, moe_fp8_reference(x, *arguments, **options, swiglu_limit=7.0), tolerance)


def test_moe_fp8_when_all_tokens_choose_the_same_experts() -> None:
    x, logits = normal(300, 2880), torch.arange(32.0, device="cuda").expand(300, 32).contiguous().bfloat16()
    gate_up, down = encode_rows(normal(32, 5760, 2880, scale=0.03)), encode_rows(normal(32, 2880, 2880, scale=0.03))
    biases = normal(32, 5760), normal(32, 2880)
    arguments = (logits, gate_up, biases[0], down, biases[1])
    out = moe_fp8(x, *arguments, experts_per_token=4, swiglu_alpha=1.702)
    expected = moe_fp8_reference(x, *arguments, experts_per_token=4, swiglu_alpha=1.702, swiglu_limit=7.0)
    assert_near(out, expected, E4M3_FLIPS)
