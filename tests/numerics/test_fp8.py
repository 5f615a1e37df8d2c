import math

import pytest
import torch

from rose.numerics import fp8

MAX = 448.0


def all_e4m3():
    """Every E4M3 number but NaN, as float32."""
    codes = torch.arange(256, dtype=torch.uint8).view(fp8.E4M3).float()
    return codes[~codes.isnan()]


def nearest_e4m3(x):
    """By the definition of rounding: the closest of all numbers, and of two equally close ones the even code."""
    grid = all_e4m3().abs().unique()  # in order of code
    distance = (x.abs().double().unsqueeze(-1) - grid.double()).abs()
    best = distance.amin(-1, keepdim=True)
    index = torch.arange(len(grid)).expand_as(distance)
    tied = torch.where(distance == best, index, len(grid))
    first, last = tied.amin(-1), torch.where(distance == best, index, -1).amax(-1)
    return grid[torch.where(first % 2 == 0, first, last)] * torch.sign(x)


def test_the_grid_is_that_of_the_paper():
    grid = all_e4m3()
    assert (grid.max(), grid[grid > 0].min(), len(grid.unique())) == (448, 2.0**-9, 253)


@pytest.mark.parametrize("encode", [fp8.encode_rows, fp8.encode_blocks])
def test_every_number_of_the_grid_comes_back_at_every_scale(encode):
    grid = all_e4m3().double()
    for exponent in range(-126, 119):
        weight = (grid * 2.0**exponent).float().unsqueeze(0)
        encoded = encode(weight)
        fp8.check(encoded.values, encoded.scales)
        assert torch.equal(encoded.dequantize(torch.float32), weight), exponent


def test_rows_round_to_the_nearest():
    weight = torch.randn(20, 300, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 4, 20).unsqueeze(1)
    encoded = fp8.encode_rows(weight)
    assert encoded.shape == (20, 300)
    assert encoded.scales.shape == (20,)
    scaled = weight / encoded.scales.unsqueeze(1)
    assert torch.equal(encoded.values.float(), nearest_e4m3(scaled))
    assert torch.all((scaled.abs().amax(1) > MAX / 2) & (scaled.abs().amax(1) <= MAX))


@pytest.mark.parametrize(
    ("largest", "exponent"),
    [
        (448.0, 0),
        (448.1, 1),
        (224.0, -1),
        (1.0, -8),
        (1.75, -8),
        (1.76, -7),
        (0.0, 0),
        (2.0**-149, -126),
        (3.4e38, 120),
    ],
)
def test_scale_is_the_smallest_power_of_two_that_fits(largest, exponent):
    assert fp8.scale_exponents(torch.tensor([largest])).tolist() == [exponent]


def test_powers_of_two_are_exact():
    exponents = torch.arange(-126, 128, dtype=torch.int32)
    assert fp8.powers_of_two(exponents).tolist() == [math.ldexp(1.0, e) for e in exponents.tolist()]


@pytest.mark.parametrize("shape", [(1, 1), (128, 128), (130, 64), (100, 300), (3, 257, 129)])
def test_blocks_at_the_edges_are_smaller(shape):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    weight[..., -1, -1] = 1000.0
    encoded = fp8.encode_blocks(weight)
    m, n = shape[-2:]
    assert encoded.scales.shape == (*shape[:-2], math.ceil(m / 128), math.ceil(n / 128))
    for i in range(math.ceil(m / 128)):
        for j in range(math.ceil(n / 128)):
            rows, columns = slice(i * 128, (i + 1) * 128), slice(j * 128, (j + 1) * 128)
            block = weight[..., rows, columns].contiguous()
            alone = fp8.encode_rows(block.flatten(-2))
            assert torch.equal(alone.scales, encoded.scales[..., i, j])
            restored = encoded.dequantize(torch.float32)[..., rows, columns]
            assert torch.equal(alone.dequantize(torch.float32), restored.flatten(-2))


@pytest.mark.parametrize("shape", [(2, 300, 320), (3, 5, 40_000), (700, 96), (2, 0, 64)])
def test_no_piece_of_a_large_weight_is_special(shape):
    """More elements than are worked on at a time, in rows and blocks that do not divide them."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(6)).bfloat16()
    rows, blocks = fp8.encode_rows(weight), fp8.encode_blocks(weight)
    turned = fp8.encode_rows(weight.mT.contiguous().mT)  # the same in another order of memory
    assert torch.equal(turned.values.view(torch.uint8), rows.values.view(torch.uint8))
    exponents = fp8.scale_exponents(weight.float().abs().amax(-1))
    assert torch.equal(rows.scales, torch.exp2(exponents.float()))
    assert torch.equal(blocks.scales, torch.exp2(fp8.scale_exponents(fp8.block_max(weight.abs(), 128, 128)).float()))
    for encoded, scales in (
        (rows, rows.scales.unsqueeze(-1)),
        (blocks, fp8.expand_blocks(blocks.scales, *shape[-2:])),
    ):
        values = encoded.values.float()
        assert torch.equal(values, (weight.float() / scales).to(fp8.E4M3).float())
        for dtype in (torch.float32, torch.bfloat16):
            assert torch.equal(encoded.dequantize(dtype), (values * scales).to(dtype))


def test_parts_of_a_weight_are_views():
    weight = torch.randn(2, 256, 64)
    for encode in (fp8.encode_rows, fp8.encode_blocks):
        encoded = encode(weight)
        whole = encoded.dequantize(torch.float32)
        assert torch.equal(encoded[1].dequantize(torch.float32), whole[1])
        assert torch.equal(encoded[1].rows(128, 200).dequantize(torch.float32), whole[1, 128:200])
    blocks = fp8.encode_blocks(weight)[0]
    with pytest.raises(ValueError, match="start at multiples of 128, not at 5"):
        blocks.rows(5, 9)
    with pytest.raises(ValueError, match="one at a time"):
        blocks[3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tokens_are_rounded_on_their_own(dtype):
    x = torch.randn(5, 300, generator=torch.Generator().manual_seed(2)).to(dtype)
    x[1] *= 0.001
    rounded = fp8.round_tokens(x)
    assert rounded.dtype == dtype
    encoded = fp8.encode_rows(x)
    assert torch.equal(rounded.float(), encoded.dequantize(torch.float32))
    assert torch.equal(fp8.round_tokens(x[1:2]), rounded[1:2])
    assert torch.equal(fp8.round_tokens(rounded), rounded)


def test_groups_of_128_features_are_rounded_on_their_own():
    x = torch.randn(5, 300, generator=torch.Generator().manual_seed(3))
    x[:, 128:256] *= 2.0**-20
    parts = [fp8.round_tokens(part) for part in x.split(128, dim=1)]
    assert torch.equal(fp8.round_token_groups(x), torch.cat(parts, dim=1))
    assert fp8.round_tokens(x)[:, 128:256].eq(0).any()  # a scale for the token alone loses them
    assert not torch.equal(fp8.round_tokens(x), fp8.round_token_groups(x))


def test_no_tokens():
    assert fp8.round_tokens(torch.empty(0, 64)).shape == (0, 64)
    assert fp8.round_token_groups(torch.empty(0, 64)).shape == (0, 64)


@pytest.mark.parametrize("scale", [0.0, -1.0, 3.0, math.nan, math.inf])
def test_impossible_scales_are_found(scale):
    values, scales = torch.ones(2, 2).to(fp8.E4M3), torch.tensor([1.0, scale])
    with pytest.raises(ValueError, match=r"1 FP8 scale.*\[1\]"):
        fp8.check(values, scales)
    assert not fp8.is_sound(values, scales)
    assert fp8.is_sound(values, torch.ones(2))


def test_nan_numbers_are_found():
    with pytest.raises(ValueError, match="FP8 values hold NaN"):
        fp8.check(torch.full((2, 2), math.nan).to(fp8.E4M3), torch.ones(2))
    assert not fp8.is_sound(torch.full((2, 2), math.nan).to(fp8.E4M3), torch.ones(2))
