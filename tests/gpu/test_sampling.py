"""`sample_tokens` on a Hopper GPU, over a vocabulary of the published size."""

import math

import pytest
import torch
from torch import Tensor

from rose.kernels.sampling.op import sample_tokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]


def check_tokens(logits: Tensor, temperatures: Tensor, uniforms: Tensor, chosen: Tensor) -> None:
    """The best token without a temperature; else the one whose share of the cumulative sum has the random number."""
    tokens, valid = chosen[0][:, None], chosen[1]
    assert valid.all()
    is_random = temperatures > 0
    assert torch.equal(logits.gather(1, tokens)[~is_random, 0], logits.amax(1)[~is_random])
    mass = (logits.double() / torch.where(is_random, temperatures, 1.0)[:, None]).softmax(1)
    ends = mass.cumsum(1).gather(1, tokens)[:, 0]
    begins = ends - mass.gather(1, tokens)[:, 0]
    # Of 200,000 tokens many are narrower than the error of a float32 sum.
    assert ((uniforms > begins - 1e-5) & (uniforms < ends + 1e-5))[is_random].all()


@pytest.mark.parametrize("num_rows", [1, 3, 64])
@pytest.mark.parametrize("spread", [1.0, 8.0], ids=["nearly even", "peaked"])
def test_tokens_have_their_share(num_rows: int, spread: float) -> None:
    torch.manual_seed(num_rows)
    logits = torch.randn(num_rows, 201_088, device="cuda") * spread
    logits[0, 5000:100_000] = -math.inf  # as a grammar leaves them
    temperatures = torch.tensor([0.7, 0.0, 1.3] * 22, device="cuda")[:num_rows]
    uniforms = torch.rand(num_rows, device="cuda", dtype=torch.float64)
    chosen = sample_tokens(logits, temperatures, uniforms)
    check_tokens(logits, temperatures, uniforms, chosen)
    assert logits.gather(1, chosen[0][:, None]).isfinite().all()
    assert torch.equal(sample_tokens(logits, temperatures, uniforms), chosen)
    logits[-1, 77] = math.nan
    assert sample_tokens(logits, temperatures, uniforms)[1].tolist() == [1] * (num_rows - 1) + [0]


@pytest.mark.parametrize("vocab_size", [300, 2048, 201_088])
def test_a_row_of_nan_names_a_token_that_exists(vocab_size: int) -> None:
    logits = torch.full((3, vocab_size), math.nan, device="cuda")
    logits[1] = torch.randn(vocab_size, device="cuda")
    temperatures = torch.tensor([0.0, 1.0, 1.0], device="cuda")
    tokens, valid = sample_tokens(logits, temperatures, torch.rand(3, device="cuda", dtype=torch.float64))
    assert valid.tolist() == [0, 1, 0]
    assert ((tokens >= 0) & (tokens < vocab_size)).all()
