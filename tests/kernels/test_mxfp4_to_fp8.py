"""MXFP4 to FP8: the Triton kernel under Triton's interpreter and the op's reference, bit for bit."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from rose.errors import UnsupportedShape
from rose.kernels.mxfp4_to_fp8.op import mxfp4_to_fp8_
from rose.kernels.mxfp4_to_fp8.reference import mxfp4_to_fp8_reference_
from rose.numerics.fp8 import E4M3, Fp8BlockTensor, Fp8RowTensor
from rose.numerics.mxfp4 import Mxfp4Tensor

FORMS = [Fp8RowTensor, Fp8BlockTensor]


def poisoned(form: type, shape: tuple[int, ...]) -> Fp8RowTensor | Fp8BlockTensor:
    """Memory full of NaN for a weight of this shape."""
    *outer, m, n = shape
    scales = (*outer, m) if form is Fp8RowTensor else (*outer, -(-m // 128), -(-n // 128))
    return form(torch.full(shape, 0x7F, dtype=torch.uint8).view(E4M3), torch.full(scales, torch.nan))


def assert_same_bits(source: Mxfp4Tensor, form: type) -> None:
    pytest.importorskip("triton", reason="Triton is not made for this system")
    from rose.kernels.mxfp4_to_fp8.mxfp4_to_fp8_triton import mxfp4_to_fp8_triton_

    out, expected = (poisoned(form, source.shape) for _ in range(2))
    mxfp4_to_fp8_triton_(source, out)
    mxfp4_to_fp8_reference_(source, expected)
    different = out.values.view(torch.uint8) != expected.values.view(torch.uint8)
    assert not different.any(), f"first at {different.nonzero()[0].tolist()}"
    assert torch.equal(out.scales, expected.scales)


def random_mxfp4(*shape: int, low: int, high: int, seed: int = 0) -> Mxfp4Tensor:
    generator = torch.Generator().manual_seed(seed)
    scales_shape = (*shape[:-1], shape[-1] // 32)
    blocks = torch.randint(0, 256, (*scales_shape, 16), generator=generator, dtype=torch.uint8)
    return Mxfp4Tensor(blocks, torch.randint(low, high, scales_shape, generator=generator, dtype=torch.uint8))


def codes_beside_codes(spread: int, top: int) -> Mxfp4Tensor:
    """64 rows: a magnitude at scale `top`, and all codes up to another magnitude `spread` powers of two below it.

    Two more blocks: all codes 24 powers further down, which vanish, and none at the highest scale there is.
    """
    high, low = torch.arange(8).repeat_interleave(8), torch.arange(8).repeat(8)
    blocks = torch.zeros(64, 4, 16, dtype=torch.uint8)
    blocks[:, 0, 3] = (high * 16 + 128).byte()  # the odd element, negative
    prefix = torch.arange(8).minimum(low.unsqueeze(1)).byte()
    blocks[:, 1] = torch.cat([prefix + (prefix << 4), prefix * 17 + 0x80], dim=1)
    blocks[:, 2] = torch.arange(16).byte() * 17
    scales = torch.tensor([top, top - spread, top - spread - 24, 254]).clamp(min=0).byte()
    return Mxfp4Tensor(blocks, scales.expand(64, 4).contiguous())


@pytest.mark.parametrize(("top", "spreads"), [(130, range(21)), (254, (0, 13)), (21, (5,)), (3, (1,))])
def test_every_code_at_every_spread(top: int, spreads: Sequence[int]) -> None:
    """At the lowest tops the scale would be less than the smallest normal power of two."""
    parts = [codes_beside_codes(spread, top) for spread in spreads]
    source = Mxfp4Tensor(torch.cat([part.blocks for part in parts]), torch.cat([part.scales for part in parts]))
    assert_same_bits(source, Fp8RowTensor)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("low", "high"), [(118, 124), (100, 130), (0, 12), (0, 255)])
@pytest.mark.parametrize("shape", [(1, 32), (130, 160), (2, 3, 2880), (3, 5, 96)], ids=str)
def test_random_rows(shape: tuple[int, ...], low: int, high: int, form: type) -> None:
    source = random_mxfp4(*shape, low=low, high=high)
    source.blocks[..., 0, :, :] = 0x80  # a row of zeros, every second of them negative
    source.blocks[..., -1, 0, :] &= 0x88  # and a block, whose scale must not count
    assert_same_bits(source, form)


@pytest.mark.parametrize("form", FORMS)
def test_the_op_writes_its_outputs_in_place(form: type) -> None:
    source = random_mxfp4(2, 130, 64, low=120, high=126)
    memory = poisoned(form, (3, 130, 64))
    out = form(memory.values[1:], memory.scales[1:])
    mxfp4_to_fp8_(source, out)
    assert torch.equal(out.dequantize(torch.float32), source.dequantize(torch.float32))
    assert memory.values[0].view(torch.uint8).eq(0x7F).all()
    assert memory.scales[0].isnan().all()


@pytest.mark.parametrize(
    ("values", "scales", "message"),
    [
        (torch.zeros(4, 32), torch.zeros(4), "values must be torch.float8_e4m3fn"),
        (torch.zeros(4, 64).to(E4M3), torch.zeros(4), r"values must have shape \[4, 32\]"),
        (torch.zeros(32, 4).to(E4M3).t(), torch.zeros(4), "values must be contiguous"),
        (torch.zeros(4, 32).to(E4M3), torch.zeros(4, 1), r"scales must have shape \[4\]"),
        (torch.zeros(4, 32).to(E4M3), torch.zeros(4).half(), "scales must be torch.float32"),
    ],
)
def test_what_the_contract_forbids_is_refused(values: Tensor, scales: Tensor, message: str) -> None:
    with pytest.raises(UnsupportedShape, match=message):
        mxfp4_to_fp8_(random_mxfp4(4, 32, low=120, high=126), Fp8RowTensor(values, scales))


@pytest.mark.parametrize("form", FORMS)
def test_no_rows(form: type) -> None:
    out = poisoned(form, (0, 64))
    mxfp4_to_fp8_(random_mxfp4(0, 64, low=120, high=126), out)
