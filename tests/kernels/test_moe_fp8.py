"""The fused FP8 experts under Triton's interpreter, against their reference."""

import pytest
import torch

from rose.kernels.grouped_gemm.op import grouped_gemm
from rose.kernels.moe_combine.op import moe_combine
from rose.kernels.moe_fp8.launch import GroupedGemmLaunch, grouped_gemm_launch
from rose.kernels.moe_fp8.reference import moe_fp8_reference
from rose.kernels.moe_routing.op import moe_routing
from rose.kernels.swiglu.op import swiglu
from rose.numerics.fp8 import Fp8RowTensor, encode_rows, round_tokens

pytest.importorskip("triton", reason="Triton is not made for this system")

ALPHA, LIMIT = 1.702, 7.0
CASES = {
    "one token": (1, 8),
    "experts without rows, partial tiles": (5, 8),
    "an expert with more rows than a tile": (40, 4),
}


# Rows that belong to no expert hold garbage, which may overflow.
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize(("num_tokens", "num_experts"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("sizes", [(64, 32), (80, 48)], ids=["whole tiles", "tiles that stick out of every edge"])
def test_agrees_with_the_ops_it_is_made_of(
    num_tokens: int, num_experts: int, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything but the rounding to E4M3, which the interpreter gets wrong: float16 stands in. The GPU tests round."""
    from rose.kernels.moe_fp8 import moe_fp8_triton as backend

    monkeypatch.setattr(backend, "E4M3", torch.float16)
    hidden_size, intermediate_size = sizes
    generator = torch.Generator().manual_seed(num_tokens)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    x, logits = normal(num_tokens, hidden_size).half(), normal(num_tokens, num_experts)
    weights = [
        encode_rows(normal(num_experts, 2 * intermediate_size, hidden_size) * 0.2),
        encode_rows(normal(num_experts, hidden_size, intermediate_size) * 0.2),
    ]
    biases = normal(num_experts, 2 * intermediate_size), normal(num_experts, hidden_size)

    routing = moe_routing(logits, experts_per_token=4)
    rows = x.float().index_select(0, routing.pair_order // 4)
    activated = swiglu(grouped_gemm(rows, weights[0], routing.expert_offsets, biases[0]), alpha=ALPHA, limit=LIMIT)
    out_rows = grouped_gemm(activated, weights[1], routing.expert_offsets, biases[1])
    expected = moe_combine(out_rows, routing.expert_weights, routing.pair_order)

    halves = [Fp8RowTensor(weight.values.half(), weight.scales) for weight in weights]
    out = backend.moe_fp8_triton(
        x, logits, halves[0], biases[0], halves[1], biases[1], experts_per_token=4, swiglu_alpha=ALPHA,
        launch=GroupedGemmLaunch(16, 32, 32, 4, 2, 2, flatten=False), num_programs=3,
    )  # fmt: skip
    assert not out.isnan().any()
    error = (out.float() - expected).norm() / expected.norm()
    assert error < 5e-3, f"relative error {error:.4f}"


def test_the_reference_rounds_what_the_contract_says() -> None:
    generator = torch.Generator().manual_seed(0)
    x, logits = torch.randn(6, 64, generator=generator), torch.randn(6, 8, generator=generator)
    gate_up = encode_rows(torch.randn(8, 96, 64, generator=generator) * 0.2)
    down = encode_rows(torch.randn(8, 64, 48, generator=generator) * 0.2)
    biases = torch.zeros(8, 96), torch.zeros(8, 64)
    arguments = (logits, gate_up, biases[0], down, biases[1])
    options = {"experts_per_token": 4, "swiglu_alpha": ALPHA, "swiglu_limit": LIMIT}
    out = moe_fp8_reference(x, *arguments, **options)
    assert torch.equal(out, moe_fp8_reference(round_tokens(x), *arguments, **options))
    unrounded = moe_fp8_reference(x + 0.01 * x.sign(), *arguments, **options)
    assert not torch.equal(out, unrounded)


def test_tiles_are_low_where_experts_have_few_rows() -> None:
    assert grouped_gemm_launch(8192 * 4, 32).tile_m == 128
    assert grouped_gemm_launch(64 * 4, 32).tile_m == 64
