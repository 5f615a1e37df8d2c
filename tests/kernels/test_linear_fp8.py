"""The Triton parts of the FP8 linear layer under Triton's interpreter."""

import pytest
import torch

from rose.numerics.fp8 import Fp8RowTensor, encode_rows

pytest.importorskip("triton", reason="Triton is not made for this system")


def test_tokens_get_the_scales_of_the_format() -> None:
    """The scales alone: the interpreter rounds to E4M3 wrongly, so the numbers are left to the GPU tests."""
    from rose.kernels.linear_fp8.round_tokens_triton import round_tokens_triton

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 48, generator=generator) * torch.tensor([1e-3, 1.0, 448.0, 449.0, 3e4, 0.0]).unsqueeze(1)
    x[2, 0] = 448.0  # fits a scale of one exactly
    x[2, 1:].clamp_(-448, 448)
    values, scales = round_tokens_triton(x)
    expected = encode_rows(x)
    nonzero = x.abs().amax(1) > 0
    assert torch.equal(scales[nonzero], expected.scales[nonzero])
    assert torch.equal(values[~nonzero].float(), torch.zeros(1, 48))


def test_few_rows_with_edges_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    from rose.kernels.linear_fp8.few_rows_triton import few_rows_triton

    generator = torch.Generator().manual_seed(0)
    weight = encode_rows(torch.randn(70, 144, generator=generator))
    x = torch.randn(17, 144, generator=generator).half()  # float16 stands in for E4M3
    scales = 2.0 ** torch.randint(-3, 3, (17,), generator=generator)
    out = few_rows_triton(x, scales, Fp8RowTensor(weight.values.half(), weight.scales))
    expected = (x.float() * scales.unsqueeze(1)) @ weight.dequantize(torch.float32).t()
    torch.testing.assert_close(out, expected, atol=1e-3, rtol=1e-3)
