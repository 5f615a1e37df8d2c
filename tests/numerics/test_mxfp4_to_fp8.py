"""Exactness by exhaustion: every code at every spread of scales, against values computed by the definitions."""

import pytest
import torch

from rose.numerics import fp8, mxfp4
from rose.numerics.loss import Loss, measure_loss
from rose.numerics.mxfp4 import Mxfp4Tensor
from rose.numerics.mxfp4_to_fp8 import to_fp8_blocks, to_fp8_rows

MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
VALUES = [*MAGNITUDES, *(-m for m in MAGNITUDES)]
SPREADS = range(21)


def pack(codes, scales):
    """codes: [..., n] of 0 ... 15; scales: [..., n / 32]."""
    codes = codes.to(torch.uint8)
    return Mxfp4Tensor((codes[..., 0::2] | codes[..., 1::2] << 4).unflatten(-1, (-1, 16)), scales.to(torch.uint8))


def two_scales(high_code, low_codes, spread, top=130):
    """One row of two blocks: `high_code` at scale 2**(top - 127), `low_codes` at one `spread` powers of two lower."""
    codes = torch.zeros(1, 64, dtype=torch.uint8)
    codes[0, 0] = high_code
    codes[0, 32 : 32 + len(low_codes)] = torch.tensor(low_codes)
    return pack(codes, torch.tensor([[top, top - spread]]))


def is_exact(tensor, converted):
    return torch.equal(converted.dequantize(torch.float64), tensor.dequantize(torch.float64))


def representable(value, scale):
    """Whether E4M3 times scale holds the value, by looking through all of E4M3."""
    grid = torch.arange(256, dtype=torch.uint8).view(fp8.E4M3).double()
    return bool((grid * scale == value).any())


@pytest.mark.parametrize("convert", [to_fp8_rows, to_fp8_blocks])
@pytest.mark.parametrize("spread", SPREADS)
def test_exact_if_and_only_if_some_scale_is(convert, spread):
    """All 16 codes beside all 16, at every spread: what is held exactly is what any power of two could hold."""
    for high in range(16):
        for low in range(16):
            tensor = two_scales(high, [low], spread)
            values = {VALUES[high] * 2.0**3, VALUES[low] * 2.0 ** (3 - spread)}
            possible = any(all(representable(v, 2.0**k) for v in values) for k in range(-40, 20))
            assert is_exact(tensor, convert(tensor)) == possible, (high, low, spread)


@pytest.mark.parametrize("convert", [to_fp8_rows, to_fp8_blocks])
def test_all_codes_in_both_blocks_are_exact_up_to_a_spread_of_14(convert):
    all_codes = list(range(16))
    exact = []
    for spread in SPREADS:
        tensor = two_scales(0, all_codes, spread)
        tensor.blocks[0, 0] = tensor.blocks[0, 1]  # the upper block has all codes as well
        exact.append(is_exact(tensor, convert(tensor)))
    assert exact == [spread <= 14 for spread in SPREADS]


def test_the_codes_that_occur_decide():
    """Only halves above and below: 17; the largest above, the odd ones below: 14."""
    limits = {}
    for high, low in ((1, 1), (7, 1), (7, 3), (1, 3), (7, 2)):
        limits[VALUES[high], VALUES[low]] = max(
            s for s in range(25) if is_exact(t := two_scales(high, [low], s), to_fp8_rows(t))
        )
    assert limits == {(0.5, 0.5): 17, (6.0, 0.5): 14, (6.0, 1.5): 14, (0.5, 1.5): 17, (6.0, 1.0): 15}


def test_what_is_not_exact_is_off_by_little():
    for spread in range(15, 21):
        tensor = two_scales(7, [1, 3, 5], spread)
        error = (to_fp8_rows(tensor).dequantize(torch.float64) - tensor.dequantize(torch.float64)).abs()
        assert 0 < error.max() <= 6 * 2.0**3 * 2.0**-18


@pytest.mark.parametrize(
    ("convert", "encode"), [(to_fp8_rows, fp8.encode_rows), (to_fp8_blocks, fp8.encode_blocks)], ids=["rows", "blocks"]
)
@pytest.mark.parametrize("shape", [(1, 32), (130, 96), (2, 128, 2880), (3, 5, 160)])
@pytest.mark.parametrize(("low", "high"), [(118, 124), (100, 130), (0, 252)])
def test_the_same_bits_as_through_floats(convert, encode, shape, low, high):
    generator = torch.Generator().manual_seed(0)
    scales = torch.randint(low, high, (*shape[:-1], shape[-1] // 32), generator=generator)
    codes = torch.randint(0, 16, shape, generator=generator)
    codes[..., :32] = 0  # a block of zeros, whose scale must not count
    tensor = pack(codes, scales)
    converted, expected = convert(tensor), encode(tensor.dequantize(torch.float32))
    assert torch.equal(converted.values.view(torch.uint8), expected.values.view(torch.uint8))
    assert torch.equal(converted.scales, expected.scales)


def test_zeros_and_minus_zero():
    zeros = pack(torch.full((2, 64), 8), torch.full((2, 2), 254))
    converted = to_fp8_rows(zeros)
    assert converted.scales.tolist() == [1.0, 1.0]
    assert torch.equal(converted.values.view(torch.uint8), torch.full((2, 64), 0x80, dtype=torch.uint8))


def test_loss_counts_blocks_and_errors():
    spread = torch.full((2, 8), 120)
    spread[1, 0] = 140  # 20 powers of two in one row, and in one block of 128 x 128
    codes = torch.full((2, 256), 1)
    tensor = pack(codes, spread)
    values = tensor.dequantize(torch.float32)
    rows = measure_loss(values, to_fp8_rows(tensor).dequantize(torch.float32), (1, 0))
    assert (rows.exact_blocks, rows.inexact_blocks) == (1, 1)
    blocks = measure_loss(values, to_fp8_blocks(tensor).dequantize(torch.float32), (128, 128))
    assert (blocks.exact_blocks, blocks.inexact_blocks) == (1, 1)
    assert rows.max_relative_error == 1.0  # 2**-20 of the largest becomes zero
    assert rows.max_abs_error == 2.0**-8
    both = rows + Loss(exact_blocks=5)
    assert (both.exact_blocks, both.max_abs_error) == (6, rows.max_abs_error)
    assert Loss.from_json(both.to_json()) == both


def test_loss_of_gaussian_weights_in_fp8():
    weight = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    loss = measure_loss(weight, fp8.encode_rows(weight).dequantize(torch.float32), (1, 0))
    assert loss.inexact_blocks == 256
    assert 0.02 < loss.rms_relative_error < 0.03
    # A normal number is off by at most half of 2**-3, one near the smallest subnormal by more.
    assert loss.max_relative_error <= 1.0


def test_scales_of_mxfp4_encode_are_within_reach():
    """Gaussian weights through MXFP4 and FP8: what four bits lost is all that is lost."""
    tensor = mxfp4.encode(torch.randn(64, 2880, generator=torch.Generator().manual_seed(0)) * 0.02)
    assert is_exact(tensor, to_fp8_rows(tensor))
    assert is_exact(tensor, to_fp8_blocks(tensor))
