import math

import pytest
import torch
import torch.nn.functional as F

from rose.errors import UnsupportedShape
from rose.kernels.grouped_gemm.op import grouped_gemm
from rose.kernels.moe_combine.op import WeightedRows, moe_combine
from rose.kernels.moe_routing.op import moe_routing
from rose.kernels.rmsnorm.op import add_rmsnorm_, rmsnorm
from rose.kernels.rope_kv_write.op import rope_kv_write_
from rose.kernels.swiglu.op import swiglu
from rose.numerics import mxfp4
from rose.numerics.fp8 import round_tokens

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
EPSILON = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (3, 2880), (5, 65)])
def test_rmsnorm(shape, dtype):
    x, weight = torch.randn(shape).to(dtype) * 3, torch.randn(shape[1])
    expected = F.rms_norm(x.double(), (shape[1],), weight.double(), 1e-5)
    out = rmsnorm(x, weight, eps=1e-5).tensor
    assert out.dtype == dtype
    assert torch.allclose(out.double(), expected, rtol=EPSILON[dtype], atol=1e-5)


def test_rmsnorm_leaves_its_input_alone():
    x = torch.randn(2, 8)
    before = x.clone()
    rmsnorm(x, torch.ones(8), eps=1e-5)
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rmsnorm_rounds_what_it_would_return(dtype):
    x, weight = torch.randn(5, 33).to(dtype) * 3, torch.randn(33)
    plain = rmsnorm(x, weight, eps=1e-5)
    assert plain.rounded is None
    for form in ("rounded", "both"):
        out = rmsnorm(x, weight, eps=1e-5, form=form)
        assert torch.equal(out.rounded.dequantize(torch.float32), round_tokens(plain.tensor.float()))
        if form == "both":
            assert torch.equal(out.tensor, plain.tensor)
        else:
            with pytest.raises(ValueError, match="rounded form alone"):
                _ = out.tensor


def test_add_rmsnorm_adds_a_tensor_or_weighted_rows_in_place():
    x, weight = torch.randn(4, 6), torch.rand(6)
    rows, row_of = torch.randn(9, 6), torch.tensor([[8, 0], [1, 1], [3, 2], [0, 7]], dtype=torch.int32)
    terms = WeightedRows(rows, row_of, torch.rand(4, 2))
    add = torch.einsum("tk,tkh->th", terms.weights, rows[row_of.long()])
    expected = F.rms_norm(x + add, (6,), weight, 1e-5)
    for term in (add, terms):
        stream = x.clone()
        assert torch.allclose(add_rmsnorm_(stream, term, weight, eps=1e-5).tensor, expected, atol=1e-5)
        assert torch.allclose(stream, x + add, atol=1e-6)


def rotate(x, positions, angle_of_pair):
    """Rotation by complex numbers, pairs (i, i + half)."""
    half = x.shape[-1] // 2
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double())
    angles = positions[:, None, None].double() * angle_of_pair.double()
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1)


def turned(query, key, positions, table, **options):
    """Query after the op, in place, and key as it arrives in the cache."""
    caches = [torch.zeros(key.shape[0], 1, *key.shape[1:], dtype=key.dtype) for _ in range(2)]
    rope_kv_write_(query, key, key, positions, table, *caches, torch.arange(key.shape[0]), **options)
    return query, caches[0].squeeze(1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_turns_halves(dtype):
    frequencies = torch.rand(4)
    angles = torch.arange(50)[:, None] * frequencies
    table = torch.cat([angles.cos(), angles.sin()], dim=1)
    positions = torch.tensor([0, 7, 49, 7])
    fused = torch.randn(4, 7, 8).to(dtype)
    before = fused.clone()
    query, key, _ = fused.split((4, 2, 1), dim=1)  # strided views, as the fused projection gives them
    for part, old in zip(turned(query, key, positions, table), (before[:, :4], before[:, 4:6]), strict=True):
        assert torch.allclose(
            part.double(), rotate(old, positions, frequencies), rtol=EPSILON[dtype], atol=1e-2 * EPSILON[dtype] + 1e-5
        )
    assert torch.equal(fused[:, 4:], before[:, 4:])
    scaled, _ = turned(before[:, :4].clone(), key, positions, table, query_scale=0.25)
    assert torch.equal(scaled, query * 0.25)


def test_rope_pairs_are_halves_not_neighbours():
    table = torch.tensor([[0.0, 0.0, 1.0, 1.0]])  # a quarter turn of both pairs
    query = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    for part in turned(query, query.clone(), torch.tensor([0]), table):
        assert part.flatten().tolist() == [-3.0, -4.0, 1.0, 2.0]


def test_swiglu_columns_are_interleaved_and_up_gets_one_added():
    gate, up = 0.5, 2.0
    x = torch.tensor([[gate, up, -gate, up]])
    expected = [g / (1 + math.exp(-1.702 * g)) * (up + 1) for g in (gate, -gate)]
    assert torch.allclose(swiglu(x, alpha=1.702, limit=7.0), torch.tensor([expected]))


def test_swiglu_gate_is_clamped_from_above_only_and_up_on_both_sides():
    x = torch.tensor([[100.0, 100.0, 100.0, -100.0, -100.0, 0.0]])
    high = 7 / (1 + math.exp(-1.702 * 7))
    low = -100 / (1 + math.exp(170.2))
    expected = torch.tensor([[high * 8, high * -6, low]])
    assert torch.allclose(swiglu(x, alpha=1.702, limit=7.0), expected, atol=1e-30)


def test_swiglu_keeps_the_dtype_and_its_input():
    x = torch.randn(3, 8).bfloat16()
    before = x.clone()
    assert swiglu(x, alpha=1.702, limit=7.0).dtype == torch.bfloat16
    assert torch.equal(x, before)


def test_kv_write_touches_its_slots_only():
    caches = [torch.full((5, 4, 2, 4), math.nan) for _ in range(2)]
    key, value = torch.randn(3, 2, 4), torch.randn(3, 2, 4)
    slots, unturned = torch.tensor([19, 0, 6]), torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    rope_kv_write_(torch.randn(3, 6, 4), key, value, torch.zeros(3).long(), unturned, *caches, slots)
    for cache, rows in zip(caches, (key, value), strict=True):
        assert torch.equal(cache[4, 3], rows[0])
        assert torch.equal(cache[0, 0], rows[1])
        assert torch.equal(cache[1, 2], rows[2])
        assert cache.isnan().sum() == (20 - 3) * 8


def test_routing_is_top_k_then_softmax():
    logits = torch.tensor([[1.0, 5.0, 3.0, 4.0, -2.0]])
    routing = moe_routing(logits, experts_per_token=2)
    assert routing.expert_ids.tolist() == [[1, 3]]
    # Softmax over all five would give 0.64 and 0.23.
    assert torch.allclose(routing.expert_weights, torch.tensor([[5.0, 4.0]]).softmax(-1))


def test_routing_of_equal_logits_takes_the_lower_id():
    assert moe_routing(torch.zeros(2, 128), experts_per_token=4).expert_ids.tolist() == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("num_tokens", [0, 1, 33])
def test_routing_orders_pairs_by_expert(num_tokens):
    routing = moe_routing(torch.randn(num_tokens, 7), experts_per_token=3)
    experts = routing.expert_ids.flatten()
    assert routing.expert_offsets[0] == 0
    assert routing.expert_offsets[-1] == num_tokens * 3
    for expert in range(7):
        pairs = routing.pair_order[routing.expert_offsets[expert] : routing.expert_offsets[expert + 1]]
        assert pairs.tolist() == (experts == expert).nonzero().flatten().tolist()


def test_routing_refuses_more_experts_than_there_are():
    with pytest.raises(UnsupportedShape, match="cannot choose 4 of 3 experts"):
        moe_routing(torch.zeros(1, 3), experts_per_token=4)


COUNTS = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 3, 0, 5), (2, 2, 2, 2)]


@pytest.mark.parametrize("counts", COUNTS, ids=["no rows", "one row", "experts without rows", "all"])
@pytest.mark.parametrize("bias", [True, False])
def test_grouped_gemm(counts, bias):
    offsets = torch.tensor([0, *counts]).cumsum(0)
    x, weight = torch.randn(int(offsets[-1]), 64), torch.randn(4, 5, 64)
    biases = torch.randn(4, 5) if bias else None
    out = grouped_gemm(x, weight, offsets, biases)
    expert = torch.repeat_interleave(torch.arange(4), torch.tensor(counts))
    expected = torch.einsum("ri,roi->ro", x.double(), weight[expert].double())
    if biases is not None:
        expected += biases[expert]
    assert out.shape == (len(x), 5)
    assert torch.allclose(out.double(), expected, atol=1e-4)


def test_grouped_gemm_with_mxfp4_equals_the_dequantized_product():
    offsets = torch.tensor([0, 3, 3, 4])
    x, bias = torch.randn(4, 96), torch.randn(3, 10)
    weight = mxfp4.encode(torch.randn(3, 10, 96))
    assert torch.equal(
        grouped_gemm(x, weight, offsets, bias), grouped_gemm(x, weight.dequantize(torch.float32), offsets, bias)
    )


def test_grouped_gemm_never_reads_experts_without_rows():
    weight = torch.full((3, 2, 4), math.nan)
    weight[1] = 1.0
    out = grouped_gemm(torch.ones(2, 4), weight, torch.tensor([0, 0, 2, 2]), None)
    assert out.tolist() == [[4.0, 4.0]] * 2


def test_combine_weighs_each_tokens_experts():
    routing = moe_routing(torch.randn(9, 6), experts_per_token=3)
    outputs = torch.randn(9, 6, 5)  # of every expert for every token
    pairs = routing.pair_order
    rows = outputs[pairs // 3, routing.expert_ids.flatten()[pairs]]
    chosen = torch.gather(outputs, 1, routing.expert_ids.unsqueeze(-1).expand(-1, -1, 5))
    expected = (chosen * routing.expert_weights.unsqueeze(-1)).sum(1)
    before = rows.clone()
    terms = WeightedRows.in_order_of_expert(rows, routing.expert_weights, pairs)
    assert torch.allclose(moe_combine(terms), expected, atol=1e-6)
    assert torch.equal(rows, before)


def rope(heads, cache):
    token = torch.zeros(1).long()
    rope_kv_write_(heads, heads, heads, token, torch.zeros(1, heads.shape[2]), cache, cache, token)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rmsnorm(torch.zeros(2, 3), torch.zeros(4), eps=1e-5), r"weight must have shape \[3\], got \[4\]"),
        (lambda: rmsnorm(torch.zeros(2, 3), torch.zeros(3).bfloat16(), eps=1e-5), "weight must be torch.float32"),
        (lambda: rmsnorm(torch.zeros(3, 2).t(), torch.zeros(3), eps=1e-5), "contiguous in its last dimension"),
        (lambda: rmsnorm(torch.zeros(2, 3).double(), torch.zeros(3), eps=1e-5), "got torch.float64"),
        (lambda: swiglu(torch.zeros(2, 3), alpha=1.0, limit=1.0), "in pairs, got 3 columns"),
        (lambda: rope(torch.zeros(1, 1, 3), torch.zeros(1, 1, 1, 3)), "head_dim must be even, got 3"),
        (lambda: rope(torch.zeros(1, 1, 2), torch.zeros(2, 2, 2, 2)), r"key_cache must have shape \[any, any, 1, 2\]"),
        (
            lambda: add_rmsnorm_(
                torch.zeros(2, 3),
                WeightedRows(torch.zeros(5, 4), torch.zeros(2, 1).int(), torch.zeros(2, 1)),
                torch.zeros(3),
                eps=1e-5,
            ),
            r"rows must have shape \[any, 3\], got \[5, 4\]",
        ),
        (
            lambda: grouped_gemm(torch.zeros(1, 4), torch.zeros(2, 3, 5), torch.zeros(3).long(), None),
            r"x must have shape \[any, 5\], got \[1, 4\]",
        ),
        (
            lambda: moe_combine(WeightedRows(torch.zeros(3, 4), torch.zeros(2, 1).long(), torch.zeros(2, 2))),
            r"row_of must have shape \[2, 2\], got \[2, 1\]",
        ),
        (
            lambda: moe_combine(WeightedRows(torch.zeros(4, 3).t(), torch.zeros(2, 1).long(), torch.zeros(2, 1))),
            r"rows must be contiguous, got strides \(1, 3\)",
        ),
    ],
)  # fmt: skip
def test_violated_contract_gives_the_values(call, message):
    with pytest.raises(UnsupportedShape, match=message):
        call()
