"""Both published layouts in batches of mixed lengths, however these are cut into steps, against `transformers`."""

import random

import pytest
import torch

from rose.weights.loader import load_model
from tests.checkpoints import TinyShape, write_checkpoint
from tests.models.oracle import make_oracle, oracle_logits
from tests.models.running import PagedRequests

SHAPE = TinyShape(sliding_window=128, original_context=128)  # the published window; 300 is beyond the context
TEXTS = [random.Random(n).choices(range(SHAPE.vocab_size), k=n) for n in (1, 5, 127, 128, 129, 300)]


@pytest.fixture(scope="module")
def expected():
    oracle = make_oracle(SHAPE)
    return [oracle_logits(oracle, text) for text in TEXTS]


@pytest.mark.parametrize("layout", ["hugging_face", "original"])
@pytest.mark.parametrize(
    "size",
    [
        lambda text, start: 300,
        lambda text, start: 50 + len(text) % 7,
        lambda text, start: max(1, len(text) - 16 - start),
    ],
    ids=["whole", "in chunks", "the last 16 step by step"],
)
def test_requests_of_every_length_side_by_side(layout, size, expected, tmp_path):
    """The short ones end while the long ones go on."""
    model = load_model(write_checkpoint(tmp_path, SHAPE, layout=layout), device="cpu", dtype=torch.float32)
    requests = PagedRequests(model, len(TEXTS), 300, block_size=16)
    parts = [[] for _ in TEXTS]
    while work := [
        (request, text[start : start + size(text, start)])
        for request, text in enumerate(TEXTS)
        if (start := requests.lengths[request]) < len(text)
    ]:
        for (request, _), logits in zip(work, requests.step(work), strict=True):
            parts[request].append(logits)
    for logits, wanted in zip(parts, expected, strict=True):
        assert (torch.cat(logits) - wanted).abs().max() <= 1e-4
