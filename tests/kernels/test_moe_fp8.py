"""Where the fused FP8 experts put their rows, under Triton's interpreter. The GPU tests have their products."""

import math

import pytest
import torch

from rose.errors import UnsupportedShape
from rose.kernels.moe_combine.op import moe_combine
from rose.kernels.moe_fp8.op import moe_fp8
from rose.kernels.moe_fp8.reference import moe_fp8_reference
from rose.kernels.moe_routing.op import moe_routing
from rose.kernels.rmsnorm.op import add_rmsnorm_
from rose.numerics.fp8 import E4M3, Fp8RowTensor, encode_rows, encode_tokens

pytest.importorskip("triton", reason="Triton is not made for this system")

ALPHA, LIMIT = 1.702, 7.0


def experts(*shape: int) -> Fp8RowTensor:
    return Fp8RowTensor(torch.zeros(shape).to(E4M3), torch.ones(shape[:2]))


CASES = {
    "one token": (1, 8),
    "experts without rows": (5, 16),
    "experts of several units": (40, 4),
    "just too many for one program": (65, 16),
    "several programs, experts of several tiles": (300, 4),
}


@pytest.mark.parametrize(("num_tokens", "num_experts"), CASES.values(), ids=CASES)
def test_every_pair_has_a_row_of_its_expert_and_every_expert_its_tiles(num_tokens: int, num_experts: int) -> None:
    from rose.kernels.moe_fp8.place_triton import MAX_TOKENS, UNIT, place_triton

    logits = torch.randn(num_tokens, num_experts, generator=torch.Generator().manual_seed(num_tokens))
    placement = place_triton(logits, experts_per_token=4)
    routing = moe_routing(logits, experts_per_token=4)
    torch.testing.assert_close(placement.weights, routing.expert_weights)
    assert placement.next_tile.tolist() == [0, 0]

    counts = routing.expert_offsets.diff().tolist()
    token_of_row: dict[int, int] = {}
    tiles: list[list[int]] = []
    first_row = 0
    for expert, count in enumerate(counts):
        pairs = (routing.expert_ids == expert).nonzero().tolist()
        rows = {int(placement.rows[token, choice]): token for token, choice in pairs}
        assert sorted(rows) == list(range(first_row, first_row + count))
        token_of_row |= rows
        num_units = -(-count // UNIT)
        tiles += [[expert, len(tiles), num_units, first_row]] * -(-num_units * UNIT // MAX_TOKENS)
        first_row += num_units * UNIT
    assert len(token_of_row) == num_tokens * 4
    assert first_row <= placement.token_of_row.shape[0]
    assert {row: int(placement.token_of_row[row]) for row in token_of_row} == token_of_row
    assert int(placement.num_token_tiles) == len(tiles)
    assert placement.token_tiles[: len(tiles)].tolist() == tiles


def test_equal_logits_go_to_the_lower_expert() -> None:
    from rose.kernels.moe_fp8.place_triton import place_triton

    placement = place_triton(torch.zeros(3, 8), experts_per_token=2)
    assert placement.token_tiles[:2].tolist() == [[0, 0, 1, 0], [1, 1, 1, 16]]
    assert sorted(placement.rows.flatten().tolist()) == [0, 1, 2, 16, 17, 18]


@pytest.mark.parametrize("num_tokens", [60, 90])  # with one program, and with several
@pytest.mark.parametrize("absurd", [math.nan, -math.inf])
def test_tokens_without_a_best_expert_take_nobodys_rows(num_tokens: int, absurd: float) -> None:
    """Each still goes to four different experts, so that none of these has more rows than there is room for."""
    from rose.kernels.moe_fp8.place_triton import MAX_TOKENS, UNIT, place_triton

    logits = torch.randn(num_tokens, 8, generator=torch.Generator().manual_seed(0))
    logits[8:] = absurd
    placement = place_triton(logits, experts_per_token=4)
    rows = placement.rows.flatten().tolist()
    assert len(set(rows)) == num_tokens * 4
    tiles = placement.token_tiles[: int(placement.num_token_tiles)].tolist()
    for expert, _, num_units, first_row in tiles:
        assert num_units * UNIT <= MAX_TOKENS, "an expert has one tile"
        owners = [int(placement.token_of_row[row]) for row in rows if first_row <= row < first_row + num_units * UNIT]
        assert len(set(owners)) == len(owners), f"expert {expert} was chosen twice by one token"
    good = moe_routing(logits[:8], experts_per_token=4)
    torch.testing.assert_close(placement.weights[:8], good.expert_weights)
    if math.isnan(absurd):
        assert placement.weights[8:].isnan().all()


def test_the_reference_computes_what_the_contract_says() -> None:
    """Token by token and expert by expert, in float64."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    x, logits = encode_tokens(normal(6, 64)), normal(6, 8)
    weights = encode_rows(normal(8, 96, 64) * 0.2), encode_rows(normal(8, 64, 48) * 0.2)
    biases = normal(8, 96), normal(8, 64)
    out = moe_combine(
        moe_fp8_reference(
            x, logits, weights[0], biases[0], weights[1], biases[1],
            experts_per_token=4, swiglu_alpha=ALPHA, swiglu_limit=LIMIT,
        )
    )  # fmt: skip
    for token in range(6):
        expected = torch.zeros(64, dtype=torch.float64)
        chosen = logits[token].topk(4)
        for expert, weight in zip(chosen.indices.tolist(), chosen.values.softmax(0).tolist(), strict=True):
            hidden = _product(weights[0][expert], x.dequantize(torch.float64)[token], biases[0][expert])
            gate, up = hidden[0::2].clamp(max=LIMIT), hidden[1::2].clamp(-LIMIT, LIMIT)
            activated = gate * torch.sigmoid(ALPHA * gate) * (up + 1)
            rounded = (activated * 8).to(torch.float8_e4m3fn).double() / 8
            expected += weight * _product(weights[1][expert], rounded, biases[1][expert])
        error = (out[token].double() - expected).norm() / expected.norm()
        assert error < 0.01, f"token {token}: {error:.4f}"  # activations between two E4M3 numbers go either way


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": Fp8RowTensor(torch.zeros(3, 32).to(E4M3), torch.ones(3).double())}, "scales of x must be torch.float32"),
        ({"x": Fp8RowTensor(torch.zeros(3, 32).to(E4M3), torch.ones(6)[::2])}, "scales of x must be contiguous"),
        ({"router_logits": torch.zeros(3, 4).half()}, "router_logits must be torch.bfloat16 or torch.float32"),
        ({"router_logits": torch.zeros(4, 3).t()}, r"router_logits must be contiguous, got strides \(1, 3\)"),
        ({"gate_up": experts(4, 33, 32)}, r"gate_up must have shape \[4, 32, 32\], got \[4, 33, 32\]"),
        ({"down": Fp8RowTensor(experts(4, 32, 16).values, torch.ones(32, 4).t())}, "down scales must be contiguous"),
        ({"experts_per_token": 5}, "cannot choose 5 of 4 experts"),
    ],
)
def test_violated_contract_gives_the_values(changes: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "x": encode_tokens(torch.zeros(3, 32)),
        "router_logits": torch.zeros(3, 4),
        "gate_up": experts(4, 32, 32),
        "gate_up_bias": torch.zeros(4, 32).bfloat16(),
        "down": experts(4, 32, 16),
        "down_bias": torch.zeros(4, 32).bfloat16(),
        "experts_per_token": 2,
        "swiglu_alpha": ALPHA,
    }
    with pytest.raises(UnsupportedShape, match=message):
        moe_fp8(**(arguments | changes))  # type: ignore[arg-type]


def test_no_tokens_have_no_rows() -> None:
    """Also what the norm that follows adds."""
    x, residual = encode_tokens(torch.zeros(0, 32)), torch.zeros(0, 32).bfloat16()
    biases = torch.zeros(4, 32).bfloat16(), torch.zeros(4, 32).bfloat16()
    terms = moe_fp8(
        x, torch.zeros(0, 4), experts(4, 32, 32), biases[0], experts(4, 32, 16), biases[1],
        experts_per_token=2, swiglu_alpha=ALPHA,
    )  # fmt: skip
    assert add_rmsnorm_(residual, terms, torch.ones(32), eps=1e-5).tensor.shape == (0, 32)


def _product(weight: Fp8RowTensor, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    product: torch.Tensor = weight.dequantize(torch.float64) @ x + bias.double()
    return product
