"""The whole model against `transformers`, in float32: every layout, every way to cut a text into steps."""

import random

import pytest
import torch

from rose.weights.loader import load_model
from tests.checkpoints import TinyShape, write_checkpoint
from tests.models.oracle import make_oracle, oracle_logits
from tests.models.running import PagedRequests, run_in_chunks

SHAPE = TinyShape()
TOLERANCE = 1e-4
LENGTHS = [1, 5, SHAPE.sliding_window - 1, SHAPE.sliding_window, SHAPE.sliding_window + 1, 300]


def load(folder, **options):
    return load_model(folder, device="cpu", dtype=torch.float32, **options)


def tokens(length, vocab_size=SHAPE.vocab_size):
    return random.Random(length).choices(range(vocab_size), k=length)


def assert_close(logits, expected):
    assert logits.shape == expected.shape
    assert logits.dtype == torch.float32
    error = (logits - expected).abs().max().item()
    assert error <= TOLERANCE, f"logits differ by {error:.3g}"


@pytest.fixture(scope="module")
def oracle():
    return make_oracle(SHAPE)


@pytest.fixture(scope="module")
def expected(oracle):
    return {length: oracle_logits(oracle, tokens(length)) for length in LENGTHS}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load(write_checkpoint(tmp_path_factory.mktemp("checkpoint"), SHAPE))


@pytest.mark.parametrize("experts", ["bf16", "mxfp4"])
@pytest.mark.parametrize("layout", ["hugging_face", "hugging_face_floats", "original"])
def test_every_layout_and_storage(layout, experts, expected, tmp_path):
    model = load(write_checkpoint(tmp_path, SHAPE, layout=layout), experts=experts)
    for length in LENGTHS:
        assert_close(run_in_chunks(model, tokens(length), [length]), expected[length])


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("chunks", [[1], [5, 1], [100], [7], [8], [9, 250, 3, 1]], ids=str)
def test_chunks_and_single_steps_agree_with_the_whole(chunks, block_size, model, expected):
    assert_close(run_in_chunks(model, tokens(300), chunks, block_size=block_size), expected[300])


def test_mixed_batch_agrees_with_each_request_alone(model, oracle):
    """Prefill, chunks and decode in the same steps, requests joining late, one of them skipped at times."""
    texts = [tokens(40), tokens(23), tokens(9), tokens(61)]
    plans = [[40], [5, 1, 1, 1, 8, 7], [2, 1, 1, 1, 1, 1, 1, 1], [30, 1, 1, 29]]
    schedule = [[0, 1], [1, 2], [1, 2, 3], [2, 3], [1, 2, 3], [1, 2, 3], [1, 2], [2], [2]]
    requests = PagedRequests(model, len(texts), 64)
    parts = [[] for _ in texts]
    for step in schedule:
        work = []
        for request in step:
            start = requests.lengths[request]
            work.append((request, texts[request][start : start + plans[request].pop(0)]))
        for request, logits in zip(step, requests.step(work), strict=True):
            parts[request].append(logits)
    for text, logits in zip(texts, parts, strict=True):
        assert_close(torch.cat(logits), oracle_logits(oracle, text))


@pytest.mark.parametrize(
    ("shape", "length"),
    [
        (TinyShape(original_context=4096, factor=32.0), 300),
        (TinyShape(truncate=True), 300),
        (TinyShape(truncate=None), 300),
        (TinyShape(original_context=16, factor=32.0), 500),
        (TinyShape(factor=1.0, original_context=512), 300),
        (TinyShape(num_layers=4, num_q_heads=8, num_kv_heads=4, sliding_window=1), 40),
        (TinyShape(num_q_heads=3, num_kv_heads=3, num_experts=4), 40),
        (TinyShape(num_q_heads=5, num_kv_heads=1, experts_per_token=1), 40),
        (TinyShape(tie_word_embeddings=True, num_layers=1), 40),
    ],
    ids=[
        "published rope", "truncated rope", "truncate left out", "far beyond the original context", "unstretched rope",
        "window of one", "all experts, no groups", "one kv head, one expert", "tied embeddings",
    ],
)  # fmt: skip
def test_other_shapes(shape, length, tmp_path):
    model = load(write_checkpoint(tmp_path, shape))
    expected = oracle_logits(make_oracle(shape), tokens(length))
    assert_close(run_in_chunks(model, tokens(length), [length - 7, 3, 1]), expected)


def test_what_transformers_saves_can_be_loaded(oracle, expected, tmp_path):
    oracle.save_pretrained(tmp_path)
    assert_close(run_in_chunks(load(tmp_path), tokens(300), [300]), expected[300])


def test_bfloat16_is_near_float32(tmp_path, expected):
    model = load_model(write_checkpoint(tmp_path, SHAPE), device="cpu", dtype=torch.bfloat16)
    logits = run_in_chunks(model, tokens(5), [5])
    assert logits.dtype == torch.float32
    assert (logits - expected[5]).norm() / expected[5].norm() < 0.03


def test_facts_about_the_model(model, oracle):
    assert model.vocab_size == 97
    assert model.max_position == 512
    assert [spec.sliding_window for spec in model.attention_specs] == [8, None, 8]
    assert {(spec.num_kv_heads, spec.head_dim) for spec in model.attention_specs} == {(2, 16)}
    assert model.eos_token_ids == (2,)
    assert model.num_parameters == sum(parameter.numel() for parameter in oracle.parameters())
    assert (model.device, model.dtype) == (torch.device("cpu"), torch.float32)


def test_packed_experts_count_in_elements(tmp_path, model):
    packed = load(write_checkpoint(tmp_path, SHAPE), experts="mxfp4")
    assert packed.num_parameters == model.num_parameters
    assert packed.blocks[0].mlp.gate_up.blocks.dtype == torch.uint8
