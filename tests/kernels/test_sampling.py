"""`sample_tokens`: the reference against plain Python, the Triton backend under its interpreter against both."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rose.errors import UnsupportedShape
from rose.kernels.sampling.op import sample_tokens

VOCAB = 300


def triton_in_small_chunks(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> Tensor:
    pytest.importorskip("triton", reason="Triton is not made for this system")
    from rose.kernels.sampling.sampling_triton import sample_tokens_triton

    return sample_tokens_triton(logits, temperatures, uniforms, chunk=64)


BACKENDS = [sample_tokens, triton_in_small_chunks]
Backend = Callable[[Tensor, Tensor, Tensor], Tensor]


def run(
    backend: Backend, logits: Tensor, temperatures: list[float], uniforms: list[float]
) -> tuple[list[int], list[int]]:
    out = backend(logits, torch.tensor(temperatures), torch.tensor(uniforms, dtype=torch.float64))
    assert out.shape == (2, len(logits))
    assert out.dtype == torch.int64
    tokens, valid = out.tolist()
    return tokens, valid


def draw(row: list[float], temperature: float, uniform: float) -> tuple[int, float]:
    """The token by the definition, in float64, and how near the target is to the next boundary."""
    best = max(row)
    mass = [math.exp((x - best) / temperature) for x in row]
    target, total = uniform * sum(mass), 0.0
    for token, p in enumerate(mass):
        if total + p > target:
            return token, min(target - total, total + p - target) / sum(mass)
        total += p
    raise AssertionError


@pytest.mark.parametrize("backend", BACKENDS)
def test_draws_by_the_definition(backend: Backend) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, VOCAB, generator=generator) * 3
    logits[::3, 100:200] = -math.inf  # a chunk of nothing, and parts of others
    temperatures = [0.3 + 0.1 * (i % 20) for i in range(40)]
    uniforms = torch.rand(40, generator=generator, dtype=torch.float64).tolist()
    uniforms[:2] = [0.0, 1 - 2**-48]
    tokens, valid = run(backend, logits, temperatures, uniforms)
    assert all(valid)
    num_compared = 0
    for row, temperature, uniform, token in zip(logits.tolist(), temperatures, uniforms, tokens, strict=True):
        assert row[token] > -math.inf
        expected, margin = draw(row, temperature, uniform)
        if margin > 1e-6:
            num_compared += 1
            assert token == expected
    assert num_compared > 35


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_temperature_of_zero_takes_the_best_and_of_equals_the_first(backend: Backend) -> None:
    logits = torch.zeros(4, VOCAB)
    logits[0, [70, 71, 299]] = 2.0
    logits[1, 299] = 1.0
    logits[3] = -math.inf
    logits[3, 130] = -5.0
    assert run(backend, logits, [0.0, 0.0, 0.0, 0.0], [0.9] * 4) == ([70, 299, 0, 130], [1, 1, 1, 1])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_without_meaning_are_told_and_stay_in_the_vocabulary(backend: Backend, temperature: float) -> None:
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(1))
    logits[0, 7] = math.nan
    logits[1] = math.nan
    logits[2, 250] = math.inf
    logits[3] = -math.inf
    tokens, valid = run(backend, logits, [temperature] * 5, [0.5] * 5)
    assert valid == [0, 0, 0, 0, 1]
    assert all(0 <= token < VOCAB for token in tokens)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_draws_the_same_among_others(backend: Backend) -> None:
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(2))
    uniforms = [0.1, 0.3, 0.5, 0.7, 0.9, 0.99]
    together, _ = run(backend, logits, [0.8] * 6, uniforms)
    alone = [run(backend, logits[i : i + 1], [0.8], [uniforms[i]])[0][0] for i in range(6)]
    assert together == alone
    assert len(set(together)) > 2


def test_violated_contract_gives_the_values() -> None:
    with pytest.raises(UnsupportedShape, match=r"uniforms must have shape \[2\], got \[3\]"):
        sample_tokens(torch.zeros(2, 5), torch.zeros(2), torch.zeros(3, dtype=torch.float64))
    with pytest.raises(UnsupportedShape, match=r"uniforms must be torch\.float64"):
        sample_tokens(torch.zeros(2, 5), torch.zeros(2), torch.zeros(2))
    with pytest.raises(UnsupportedShape, match="no token to choose"):
        sample_tokens(torch.zeros(2, 0), torch.zeros(2), torch.zeros(2, dtype=torch.float64))
    assert sample_tokens(torch.zeros(0, 5), torch.zeros(0), torch.zeros(0, dtype=torch.float64)).shape == (2, 0)
