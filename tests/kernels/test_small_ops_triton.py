"""Triton backends of the small ops under Triton's interpreter, against the ops' references."""

import pytest
import torch

from rose.kernels.kv_write.reference import kv_write_reference
from rose.kernels.rmsnorm.reference import rmsnorm_reference
from rose.kernels.rope.reference import rope_reference

pytest.importorskip("triton", reason="Triton is not made for this system")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("num_tokens", [1, 5])
def test_rope_turns_by_halves_and_scales_the_query_alone(num_tokens: int, generator: torch.Generator) -> None:
    from rose.kernels.rope.rope_triton import rope_triton

    qkv = torch.randn(num_tokens, (6 + 2 + 2) * 16, generator=generator).half()
    heads = qkv.unflatten(1, (10, 16))
    query, key, value = heads.split((6, 2, 2), dim=1)
    expected = qkv.clone().unflatten(1, (10, 16)).split((6, 2, 2), dim=1)
    table = torch.randn(40, 16, generator=generator)
    positions = torch.randint(40, (num_tokens,), generator=generator)
    untouched = value.clone()
    rope_reference(expected[0], expected[1], positions, table, 0.37)
    rope_triton(query, key, positions, table, 0.37)
    torch.testing.assert_close(query, expected[0], atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(key, expected[1], atol=2e-3, rtol=2e-3)
    assert torch.equal(value, untouched)


def test_kv_write_touches_its_slots_alone(generator: torch.Generator) -> None:
    from rose.kernels.kv_write.kv_write_triton import kv_write_triton

    packed = torch.randn(7, 4, 12, generator=generator).half()
    key, value = packed.split(2, dim=1)  # rows are strided
    caches = [torch.full((5, 4, 2, 12), torch.nan).half() for _ in range(4)]
    slots = torch.randperm(20, generator=generator)[:7]
    kv_write_reference(key, value, caches[0], caches[1], slots)
    kv_write_triton(key, value, caches[2], caches[3], slots)
    torch.testing.assert_close(caches[2], caches[0], equal_nan=True)
    torch.testing.assert_close(caches[3], caches[1], equal_nan=True)


@pytest.mark.parametrize("width", [16, 45])  # 45: not a power of two, as 2880 is not
@pytest.mark.parametrize("adds", [False, True])
def test_rmsnorm_agrees_and_adds_in_place(width: int, adds: bool, generator: torch.Generator) -> None:
    from rose.kernels.rmsnorm.rmsnorm_triton import rmsnorm_triton

    x = torch.randn(3, width, generator=generator).half()
    add = torch.randn(3, width, generator=generator).half() if adds else None
    weight = torch.rand(width, generator=generator)
    total = x if add is None else x + add
    expected = rmsnorm_reference(total, weight, eps=1e-5)
    out = rmsnorm_triton(x, weight, eps=1e-5, add=add)
    torch.testing.assert_close(out, expected, atol=2e-3, rtol=2e-3)
    assert torch.equal(x, total)
