import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.numerics import fp8, mxfp4
from tests.numerics import slow_mxfp4

MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def one_block(values: list[float]) -> torch.Tensor:
    return torch.tensor(values + [0.0] * (32 - len(values)))


def test_low_nibble_comes_first():
    blocks = torch.zeros(1, 16, dtype=torch.uint8)
    blocks[0, 0] = 0x72  # low nibble 2 is 1.0, high nibble 7 is 6.0
    values = mxfp4.decode(blocks, torch.tensor([127], dtype=torch.uint8), torch.float32)
    assert values[:3].tolist() == [1.0, 6.0, 0.0]


def test_every_code_and_sign():
    blocks = torch.tensor([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 2], dtype=torch.uint8)
    values = mxfp4.decode(blocks, torch.tensor([128], dtype=torch.uint8), torch.float32)
    expected = [2 * m for m in MAGNITUDES] + [-2 * m for m in MAGNITUDES]
    assert values.tolist() == expected * 2
    assert math.copysign(1, values[8].item()) == -1  # minus zero keeps its sign


@pytest.mark.parametrize("scale", [0, 1, 126, 127, 252, 253])
def test_scale_is_a_power_of_two_with_bias_127(scale):
    blocks = torch.full((1, 16), 0x22, dtype=torch.uint8)  # all 1.0
    values = mxfp4.decode(blocks, torch.tensor([scale], dtype=torch.uint8), torch.float32)
    assert values.tolist() == [math.ldexp(1.0, scale - 127)] * 32


def test_scale_255_is_nan_and_an_error_at_load():
    blocks, scales = torch.zeros(2, 3, 16, dtype=torch.uint8), torch.full((2, 3), 127, dtype=torch.uint8)
    mxfp4.check_scales(scales)
    assert mxfp4.is_sound(scales)
    scales[1, 2] = 255
    assert not mxfp4.is_sound(scales)
    assert torch.isnan(mxfp4.decode(blocks, scales, torch.float32)[1, 64:]).all()
    with pytest.raises(ValueError, match=r"1 MXFP4 scale.*\[1, 2\]"):
        mxfp4.check_scales(scales)


def test_agrees_with_transformers():
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 10, 2, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(90, 160, (3, 10, 2), generator=generator, dtype=torch.uint8)
    for dtype in (torch.float32, torch.bfloat16):
        theirs = convert_moe_packed_tensors(blocks, scales, dtype=dtype).transpose(1, 2)
        assert torch.equal(mxfp4.decode(blocks, scales, dtype), theirs)


def test_shape_is_logical_and_indexing_takes_an_expert():
    tensor = mxfp4.encode(torch.randn(3, 4, 64))
    assert tensor.shape == (3, 4, 64)
    assert tensor[1].shape == (4, 64)
    assert torch.equal(tensor[1].dequantize(torch.float32), tensor.dequantize(torch.float32)[1])


def test_round_trip_of_every_magnitude_at_every_scale():
    exponents = torch.arange(-127, 126)
    # Each block holds all magnitudes up to one of them, so the largest in a block varies as well.
    prefixes = torch.stack([one_block(MAGNITUDES[: n + 1] + [-m for m in MAGNITUDES[: n + 1]]) for n in range(8)])
    values = (prefixes.double() * torch.exp2(exponents.double()).view(-1, 1, 1)).float()  # [exponents, 8, 32]
    assert torch.isfinite(values).all()
    assert torch.equal(mxfp4.encode(values).dequantize(torch.float32), values)


def test_scale_is_well_chosen_at_the_ends_of_the_range():
    for exponent in (-120, 118):
        tensor = mxfp4.encode(one_block([7.9]) * 2.0**exponent)
        assert tensor.dequantize(torch.float32)[0] == 8 * 2.0**exponent


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_round_trip_of_random_bytes(seed):
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (5, 3, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(0, 252, (5, 3), generator=generator, dtype=torch.uint8)
    values = mxfp4.decode(blocks, scales, torch.float32)
    assert torch.equal(mxfp4.encode(values).dequantize(torch.float32), values)


def test_ties_go_to_the_even_mantissa():
    # The 6 pins the scale at 1: with the next scale up the error would be larger.
    ties = {0.25: 0.0, 0.75: 1.0, 1.25: 1.0, 1.75: 2.0, 2.5: 2.0, 3.5: 4.0, 5.0: 4.0}
    pins = [6.0, 3.0, 1.5, 0.5] * 6
    encoded = mxfp4.encode(one_block([*ties, *(-t for t in list(ties)[:1]), *pins])).dequantize(torch.float32)
    assert encoded[: len(ties)].tolist() == list(ties.values())
    assert encoded[len(ties)] == 0


def test_neighbours_of_a_boundary_round_to_their_own_side():
    pins = [6.0, 3.0, 1.5, 0.5] * 6
    encoded = mxfp4.encode(one_block([2.499, 2.501, 4.99, 5.01, *pins])).dequantize(torch.float32)
    assert encoded[:4].tolist() == [2.0, 3.0, 4.0, 6.0]


def test_scale_is_the_better_of_saturating_and_not():
    saturating = mxfp4.encode(one_block([7.9]))  # 6 at scale 1, but 8 = 4 * 2 is nearer
    assert saturating.dequantize(torch.float32)[0] == 8.0
    kept = mxfp4.encode(one_block([6.5] + [0.5] * 31))  # one step up would lose every 0.5
    assert kept.dequantize(torch.float32)[:2].tolist() == [6.0, 0.5]


def test_error_of_gaussian_weights_is_that_of_four_bits():
    values = torch.randn(256, 320, generator=torch.Generator().manual_seed(0)) * 0.02
    error = mxfp4.encode(values).dequantize(torch.float32) - values
    assert error.norm() / values.norm() < 0.115


def test_zeros_and_tiny_values():
    zeros = mxfp4.encode(torch.zeros(64))
    assert zeros.scales.tolist() == [127, 127]
    assert zeros.dequantize(torch.float32).eq(0).all()
    tiny = one_block([2.0**-149])  # below the smallest scale's half step
    assert mxfp4.encode(tiny).dequantize(torch.float32).eq(0).all()


def assert_encoded_as_before(values: torch.Tensor) -> None:
    encoded = mxfp4.encode(values)
    blocks, scales = slow_mxfp4.encode(values)
    assert torch.equal(encoded.scales, scales)
    assert torch.equal(encoded.blocks, blocks)


KINDS = {
    "normal": lambda x, integer: x,
    "scaled": lambda x, integer: x * torch.exp2(integer(-149, 125, 1).double()),
    "spread": lambda x, integer: x * torch.exp2(integer(-149, 125, 64).double()),
    "any bits": lambda x, integer: integer(-(2**31), 2**31, 64).int().view(torch.float32),
    "subnormal": lambda x, integer: integer(-64, 65, 64) * 2.0**-149,
    "huge": lambda x, integer: x.clamp(-1, 1) * torch.finfo(torch.float32).max,
    "ties": lambda x, integer: integer(-32, 33, 64) / 4 * torch.exp2(integer(-140, 120, 1).double()),
    "near ties": lambda x, integer: integer(-32, 33, 64) / 4 * (1 + integer(-1, 2, 64) * 2.0**-22),
    "mostly zero": lambda x, integer: x * (integer(0, 20, 64) == 0),
    # One above 7, where the next scale up may be better, beside small ones that it may lose.
    "saturating": lambda x, integer: torch.where(
        torch.arange(64) % 32 == 0, 8 - torch.exp2(-integer(0, 24, 64).double()), integer(-8, 9, 64) / 8
    ),
    "bfloat16": lambda x, integer: x.bfloat16(),
}


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_as_the_plain_definition(kind, seed):
    generator = torch.Generator().manual_seed(seed)

    def integer(low: int, high: int, columns: int) -> torch.Tensor:
        return torch.randint(low, high, (600, columns), generator=generator)

    values = KINDS[kind](torch.randn(600, 64, generator=generator), integer)
    assert values.shape == (600, 64)
    values = values if values.dtype == torch.bfloat16 else values.float()
    values = torch.where(values.isfinite(), values, 0)
    assert_encoded_as_before(values)
    assert_encoded_as_before(values.view(30, 20, 64).transpose(0, 1))  # not contiguous
    assert_encoded_as_before(values[0])


def test_what_was_mxfp4_is_never_compared(monkeypatch):
    compared = []
    error = mxfp4._error
    monkeypatch.setattr(mxfp4, "_error", lambda *args: (compared.append(len(args[0])), error(*args))[1])
    blocks = torch.randint(0, 256, (40, 3, 16), dtype=torch.uint8)
    scales = torch.randint(100, 108, (40, 3), dtype=torch.uint8)
    values = fp8.encode_rows(mxfp4.decode(blocks, scales, torch.float32)).dequantize(torch.float32)
    assert torch.equal(mxfp4.encode(values).dequantize(torch.float32), values)
    assert sum(compared) == 0
    mxfp4.encode(torch.full((32,), 7.5))
    assert sum(compared) > 0


@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (2, 0, 32), (64,)])
def test_shapes_at_the_edge(shape):
    encoded = mxfp4.encode(torch.ones(shape))
    assert encoded.shape == shape
    assert torch.equal(encoded.dequantize(torch.bfloat16), torch.ones(shape, dtype=torch.bfloat16))


def test_bfloat16_weights_are_accepted():
    values = torch.randn(4, 32).bfloat16()
    assert torch.equal(mxfp4.encode(values).blocks, mxfp4.encode(values.float()).blocks)


def test_wrong_shapes_and_dtypes_are_refused():
    with pytest.raises(ValueError, match=r"multiples of 32.*\(2, 33\)"):
        mxfp4.encode(torch.zeros(2, 33))
    with pytest.raises(ValueError, match="do not belong"):
        mxfp4.decode(torch.zeros(2, 15, dtype=torch.uint8), torch.zeros(2, dtype=torch.uint8), torch.float32)
    with pytest.raises(ValueError, match="uint8"):
        mxfp4.decode(torch.zeros(2, 16), torch.zeros(2, dtype=torch.uint8), torch.float32)
