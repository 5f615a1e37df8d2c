"""The fast kernels on a Hopper GPU against float32 references: max and relative RMS error, and bitwise repeats.

Tolerances belong to the formats: bfloat16 results are rounded by 2**-9 relative, 0.0017 RMS; E4M3 steps are 2**-4.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rose.kernels.linear_fp8.op import linear_fp8, linear_fp8_float32, round_to_fp8
from rose.kernels.moe_combine.op import WeightedRows, moe_combine
from rose.kernels.moe_fp8.op import moe_fp8
from rose.kernels.moe_fp8.reference import moe_fp8_reference
from rose.kernels.paged_attention.op import paged_attention
from rose.kernels.paged_attention.prefill_sm90 import attention_prefill_sm90
from rose.kernels.paged_attention.reference import paged_attention_reference
from rose.kernels.rmsnorm.op import NormForm, add_rmsnorm_, rmsnorm
from rose.kernels.rmsnorm.reference import rmsnorm_reference
from rose.kernels.rope_kv_write.op import rope_kv_write_
from rose.kernels.rope_kv_write.reference import rope_kv_write_reference
from rose.numerics.fp8 import Fp8RowTensor, encode_rows, encode_tokens, round_tokens

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
    """A ragged batch over scattered blocks. Blocks that nobody owns are NaN, and keys past the end of their request."""

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
            past_end = self.kv_lens[request] - (count - 1) * block_size
            self.key[int(blocks[-1]), past_end:] = math.nan
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


@pytest.mark.parametrize("heads_together", [1, 2, 4])
@pytest.mark.parametrize("factor", [1.0, 60.0], ids=["as they are", "most with a shift"])
def test_prefill_attention_is_the_same_however_many_heads_are_worked_on_together(
    heads_together: int, factor: float
) -> None:
    batch = Batch(RAGGED, block_size=128)
    batch.query *= 0.18 * factor
    cu_seqlens_q = torch.tensor([0, *batch.query_lens]).cumsum(0).int().cuda()
    seq_lens = torch.tensor(batch.kv_lens, dtype=torch.int32).cuda()

    def attend(heads_together: int) -> Tensor:
        return attention_prefill_sm90(
            batch.query,
            batch.key,
            batch.value,
            batch.table,
            cu_seqlens_q=cu_seqlens_q,
            seq_lens=seq_lens,
            sinks=batch.sinks,
            sliding_window=None,
            heads_together=heads_together,
        )

    assert torch.equal(attend(heads_together), attend(8))


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


@pytest.mark.parametrize("num_tokens", [1, 333])
def test_rope_and_kv_write(num_tokens: int) -> None:
    heads, slots = normal(num_tokens, 80, 64), torch.randperm(512, device="cuda")[:num_tokens]
    table, positions = torch.randn(5000, 64, device="cuda"), torch.randint(5000, (num_tokens,), device="cuda")
    copy = heads.clone()
    caches = [torch.full((8, 64, 8, 64), math.nan, device="cuda").bfloat16() for _ in range(4)]
    rope_kv_write_(*heads.split((64, 8, 8), dim=1), positions, table, *caches[:2], slots, query_scale=0.18)
    rope_kv_write_reference(*copy.split((64, 8, 8), dim=1), positions, table, *caches[2:], slots, 0.18)
    assert_near(heads, copy, 0.0005)
    for cache, expected in zip(caches[:2], caches[2:], strict=True):
        assert_near(cache.flatten(0, 1)[slots], expected.flatten(0, 1)[slots], 0.0005)
        assert cache.isnan().sum() == expected.isnan().sum()


@pytest.mark.parametrize("adds", ["nothing", "a tensor", "weighted rows"])
@pytest.mark.parametrize("form", ["plain", "rounded", "both"])
def test_norm_in_all_forms(adds: str, form: NormForm) -> None:
    x, rows, weight = normal(77, 2880), normal(200, 2880), torch.rand(77, 4, device="cuda")
    row_of = torch.randint(150, (77, 4), device="cuda", dtype=torch.int32)
    rows[150:] = math.nan  # belong to nobody
    scale = torch.rand(2880, device="cuda")
    terms = WeightedRows(rows, row_of, weight)
    add = {"nothing": None, "a tensor": rows[:77], "weighted rows": terms}[adds]
    total = x.clone() if add is None else x + (moe_combine(add) if isinstance(add, WeightedRows) else add)
    out = rmsnorm(x, scale, eps=1e-5, form=form) if add is None else add_rmsnorm_(x, add, scale, eps=1e-5, form=form)
    assert_near(x, total, 0.0005)  # sums of four may be contracted otherwise
    y = rmsnorm_reference(x.float(), scale, eps=1e-5)
    if form != "rounded":
        assert_near(out.tensor, y, 0.003)
    if form != "plain":
        rounded = out.rounded
        assert rounded is not None
        assert_near(rounded.dequantize(torch.float32), round_tokens(y.bfloat16().float()), E4M3_FLIPS)
    if form == "both":
        exact = encode_tokens(out.tensor)
        assert rounded is not None
        assert torch.equal(rounded.scales, exact.scales)
        assert torch.equal(rounded.values.float(), exact.values.float())


@pytest.mark.parametrize("num_tokens", [1, 77, 1000])
def test_linear_fp8(num_tokens: int) -> None:
    x, weight, bias = normal(num_tokens, 2880), encode_rows(normal(5120, 2880, scale=0.02)), normal(5120)
    expected = round_tokens(x.float()) @ weight.dequantize(torch.float32).t() + bias.float()
    assert_near(twice(lambda: linear_fp8(round_to_fp8(x), weight, bias)), expected, 0.003)


@pytest.mark.parametrize("num_tokens", [1, 33])
def test_linear_fp8_of_few_rows_in_float32(num_tokens: int) -> None:
    x, weight = normal(num_tokens, 2880), encode_rows(normal(20112, 2880, scale=0.02))
    expected = round_tokens(x.float()) @ weight.dequantize(torch.float32).t()
    assert_near(twice(lambda: linear_fp8_float32(round_to_fp8(x), weight)), expected, 0.002)


Experts = tuple[Fp8RowTensor, Tensor, Fp8RowTensor, Tensor]


def experts(num_experts: int, hidden_size: int, intermediate_size: int) -> Experts:
    """gate_up, its bias, down, its bias."""

    def weight(*shape: int) -> Fp8RowTensor:
        each = [encode_rows(normal(*shape, scale=0.03)) for _ in range(num_experts)]
        return Fp8RowTensor(torch.stack([e.values for e in each]), torch.stack([e.scales for e in each]))

    return (
        weight(2 * intermediate_size, hidden_size),
        normal(num_experts, 2 * intermediate_size, scale=0.3),
        weight(hidden_size, intermediate_size),
        normal(num_experts, hidden_size, scale=0.3),
    )


@pytest.fixture(scope="module", params=[32, 128], ids=["32 experts", "128 experts"])
def published(request: pytest.FixtureRequest) -> Experts:
    """Experts of the published sizes."""
    return experts(request.param, 2880, 2880)


def check_moe_fp8(x: Tensor, logits: Tensor, weights: Experts) -> None:
    gate_up, gate_up_bias, down, down_bias = weights
    arguments = (round_to_fp8(x), logits, gate_up, gate_up_bias, down, down_bias)
    out = twice(lambda: moe_combine(moe_fp8(*arguments, experts_per_token=4, swiglu_alpha=1.702)))
    expected = moe_fp8_reference(*arguments, experts_per_token=4, swiglu_alpha=1.702, swiglu_limit=7.0)
    assert_near(out, moe_combine(expected), E4M3_FLIPS_OF_ONE_TOKEN if x.shape[0] == 1 else E4M3_FLIPS)


@pytest.mark.parametrize("num_tokens", [1, 2, 16, 64, 77, 1000, 5000])
def test_moe_fp8_at_the_published_sizes(num_tokens: int, published: Experts) -> None:
    check_moe_fp8(normal(num_tokens, 2880), normal(num_tokens, published[1].shape[0]), published)


@pytest.mark.parametrize("num_tokens", [3, 16, 17, 175, 176, 177, 300, 352, 353])
def test_moe_fp8_when_all_tokens_choose_the_same_experts(num_tokens: int, published: Experts) -> None:
    """Experts with every number of rows, from one unit to several tiles, and many without any."""
    logits = torch.arange(float(published[1].shape[0]), device="cuda").expand(num_tokens, -1).contiguous()
    check_moe_fp8(normal(num_tokens, 2880), logits, published)


@pytest.mark.parametrize("skew", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("num_tokens", [1408, 1423, 5632, 5999])
def test_moe_fp8_of_experts_with_many_rows_and_few(num_tokens: int, skew: float, published: Experts) -> None:
    """Skewed, some experts have many tiles, some a unit or two, and some nothing."""
    num_experts = published[1].shape[0]
    logits = normal(num_tokens, num_experts) + skew * torch.arange(float(num_experts), device="cuda")
    check_moe_fp8(normal(num_tokens, 2880), logits, published)


@pytest.mark.parametrize("sizes", [(256, 256), (144, 80), (320, 208), (16, 16)], ids=str)
@pytest.mark.parametrize("num_tokens", [5, 700])
def test_moe_fp8_where_tiles_stick_out(num_tokens: int, sizes: tuple[int, int]) -> None:
    check_moe_fp8(normal(num_tokens, sizes[0], scale=4.0), normal(num_tokens, 8), experts(8, *sizes))


@pytest.mark.parametrize("num_tokens", [60, 300])
def test_moe_fp8_of_tokens_that_are_nan_leaves_the_others_alone(num_tokens: int, published: Experts) -> None:
    x, logits = normal(num_tokens, 2880), normal(num_tokens, published[1].shape[0])
    x[1::3], logits[1::3] = math.nan, math.nan
    out = moe_combine(moe_fp8(round_to_fp8(x), logits, *published, experts_per_token=4, swiglu_alpha=1.702))
    assert out[1::3].isnan().all()
    good = torch.arange(num_tokens, device="cuda") % 3 != 1
    expected = moe_fp8_reference(
        round_to_fp8(x[good]), logits[good], *published, experts_per_token=4, swiglu_alpha=1.702, swiglu_limit=7.0
    )
    assert_near(out[good], moe_combine(expected), E4M3_FLIPS)
