"""Triton backends of the small ops under Triton's interpreter, against the ops' references."""

import pytest
import torch

from rose.kernels.moe_combine.op import WeightedRows, moe_combine
from rose.kernels.rmsnorm.reference import rmsnorm_reference
from rose.kernels.rope_kv_write.reference import rope_kv_write_reference
from rose.numerics.fp8 import encode_tokens

pytest.importorskip("triton", reason="Triton is not made for this system")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("num_tokens", [1, 5])
@pytest.mark.parametrize("heads", [(6, 2, 2), (8, 1, 1)], ids=["no powers of two", "one head of keys"])
def test_rope_turns_by_halves_and_writes_its_slots_alone(
    num_tokens: int, heads: tuple[int, int, int], generator: torch.Generator
) -> None:
    from rose.kernels.rope_kv_write.rope_kv_write_triton import rope_kv_write_triton

    packed = torch.randn(num_tokens, sum(heads), 16, generator=generator).half()  # rows are strided
    table = torch.randn(40, 16, generator=generator)
    positions = torch.randint(40, (num_tokens,), generator=generator)
    slots = torch.randperm(20, generator=generator)[:num_tokens]
    results = []
    for write in (rope_kv_write_reference, rope_kv_write_triton):
        copy = packed.clone()
        caches = [torch.full((5, 4, heads[1], 16), torch.nan).half() for _ in range(2)]
        write(*copy.split(heads, dim=1), positions, table, *caches, slots, 0.37)
        results.append((copy, *caches))
    for out, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(out, expected, atol=2e-3, rtol=2e-3, equal_nan=True)
    assert torch.equal(results[1][0][:, heads[0] :], packed[:, heads[0] :])


@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize("absurd", [torch.nan, torch.inf, -torch.inf])
def test_values_in_the_cache_are_finite_and_who_sees_a_token_without_gets_nan(backend: str, absurd: float) -> None:
    from rose.kernels.rope_kv_write.rope_kv_write_triton import rope_kv_write_triton

    write = rope_kv_write_reference if backend == "reference" else rope_kv_write_triton
    heads = torch.ones(2, 4, 16).half()
    value = heads[:, :2].clone()
    value[0, 1, 3] = value[1, 0, 13] = absurd  # in either half
    caches = [torch.zeros(3, 1, 2, 16).half() for _ in range(2)]
    slots, table = torch.tensor([2, 0]), torch.ones(1, 16)
    write(heads.clone(), heads[:, :2], value, torch.zeros(2).long(), table, *caches, slots, 1.0)
    bad = [(2, 0, 1), (0, 0, 0)]
    for slot in (0, 2):
        for head in range(2):
            key, stored = caches[0][slot, 0, head], caches[1][slot, 0, head]
            assert key.isnan().all() if (slot, 0, head) in bad else key.isfinite().all()
            assert stored.eq(0.0 if (slot, 0, head) in bad else 1.0).all()


@pytest.mark.parametrize("width", [16, 45])  # 45: not a power of two, as 2880 is not
@pytest.mark.parametrize("adds", ["nothing", "a tensor", "weighted rows"])
@pytest.mark.parametrize("form", ["plain", "rounded", "both"])
def test_rmsnorm_agrees_and_adds_in_place(width: int, adds: str, form: str, generator: torch.Generator) -> None:
    """Of the rounded form the scales and zeros alone: the interpreter rounds to E4M3 wrongly."""
    from rose.kernels.rmsnorm.rmsnorm_triton import rmsnorm_triton

    x = torch.randn(3, width, generator=generator).half()
    rows = torch.randn(9, width, generator=generator).half()
    row_of = torch.randint(9, (3, 4), generator=generator, dtype=torch.int32)
    terms = WeightedRows(rows, row_of, torch.rand(3, 4, generator=generator))
    add = {"nothing": None, "a tensor": rows[:3], "weighted rows": terms}[adds]
    weight = torch.rand(width, generator=generator)
    total = x if add is None else x + (moe_combine(add) if isinstance(add, WeightedRows) else add)
    expected = rmsnorm_reference(total, weight, eps=1e-5)
    plain, rounded = rmsnorm_triton(x, weight, eps=1e-5, add=add, form=form)
    torch.testing.assert_close(x, total, atol=2e-3, rtol=2e-3)
    assert (plain is None) == (form == "rounded")
    assert (rounded is None) == (form == "plain")
    if plain is not None:
        torch.testing.assert_close(plain, expected, atol=4e-3, rtol=4e-3)
    if rounded is not None:
        assert torch.equal(rounded.scales, encode_tokens(expected).scales)
