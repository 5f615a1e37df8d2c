"""The whole model with fast kernels on a Hopper GPU, against the same model in float32 with reference kernels."""

import math

import pytest
import torch
from torch import Tensor

from rose.kernels.paged_attention.op import paged_attention
from rose.kernels.paged_attention.reference import paged_attention_reference
from rose.layers.single_request import SingleRequestCache
from rose.models.base import CausalLM
from rose.weights.loader import load_from, load_model
from rose.weights.synthetic import synthetic_source

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]


@torch.inference_mode()
def logits(model: CausalLM, token_ids: list[int], chunk: int | None = None, block_size: int = 128) -> Tensor:
    """[num_tokens, vocab_size] float32 on the CPU, computed in chunks through the paged cache."""
    cache = SingleRequestCache(
        model.attention_specs, len(token_ids), device=model.device, dtype=model.dtype, block_size=block_size
    )
    chunk = chunk or len(token_ids)
    parts = [
        model.compute_logits(model.forward(cache.batch(token_ids[start : start + chunk])))
        for start in range(0, len(token_ids), chunk)
    ]
    return torch.cat(parts).float().cpu()


def agreement(out: Tensor, expected: Tensor) -> tuple[float, float]:
    """Share of positions with the same best token, and mean KL divergence in nats."""
    same = (out.argmax(-1) == expected.argmax(-1)).float().mean().item()
    log_p, log_q = expected.log_softmax(-1), out.log_softmax(-1)
    return same, (log_p.exp() * (log_p - log_q)).sum(-1).mean().item()


@pytest.fixture(scope="module")
def demo_tokens() -> list[int]:
    from rose.chat.conversation import Conversation, Message
    from rose.chat.registry import get_format
    from rose.chat.tokenizer import load_tokenizer
    from rose.weights.resolve import resolve_checkpoint

    chat = get_format("harmony", load_tokenizer(resolve_checkpoint("rose-demo")))
    ids: list[int] = []
    for question in ("What is 127 + 385?", "12 * 31", "who are you?", "What is 900 - 77? Answer as JSON."):
        ids += chat.render(Conversation((Message("user", question),), reasoning_effort="high"))
    return ids


@pytest.mark.parametrize("experts", ["auto", "mxfp4", "bf16", "fp8-block"])
def test_rose_demo_agrees_with_float32_on_the_cpu(experts: str, demo_tokens: list[int]) -> None:
    expected = logits(load_model("rose-demo", device="cpu", dtype=torch.float32), demo_tokens)
    model = load_model("rose-demo", device="cuda", dtype=torch.bfloat16, experts=experts)
    # Prompts are what the model was not trained to foretell: near ties are common. Measured for FP8: 0.951, 0.0056.
    same, kl = agreement(logits(model, demo_tokens), expected)
    assert same >= 0.93, f"top-1 agreement {same:.4f}, KL {kl:.5f}"
    assert kl < 0.02, f"top-1 agreement {same:.4f}, KL {kl:.5f}"
    chunked, _ = agreement(logits(model, demo_tokens, chunk=50), logits(model, demo_tokens))
    assert chunked >= 0.93


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gpt-oss-120b"])
def test_two_layers_of_the_published_shapes_agree_with_float32(name: str) -> None:
    source = synthetic_source(name, num_layers=2)
    ids = torch.randint(0, 199_000, (700,), generator=torch.Generator().manual_seed(0)).tolist()
    exact = load_from(source, device="cuda", dtype=torch.float32, experts="mxfp4", dense="bf16")
    expected = logits(exact, ids)
    del exact
    # The best of 201088 random logits is too often a near tie to count; the error of all of them is not. Rounding to
    # E4M3 costs 0.027 RMS each time.
    for dense, tolerance in (("bf16", 0.08), ("fp8", 0.12)):
        fast = load_from(source, device="cuda", dtype=torch.bfloat16, experts="fp8", dense=dense)
        whole = logits(fast, ids)
        assert relative_error(whole, expected) < tolerance
        assert relative_error(logits(fast, ids, chunk=256, block_size=64), expected) < tolerance
        assert relative_error(logits(fast, ids[:40], chunk=1), expected[:40]) < tolerance


def relative_error(out: Tensor, expected: Tensor) -> float:
    """Of all logits, RMS."""
    return ((out - expected).norm() / expected.norm()).item()


def test_a_key_planted_in_128000_tokens_is_found() -> None:
    """One key that only the last query looks for, far behind it; and sampled rows against the float32 reference."""
    length, block_size = 128_000, 128
    shape = (length // block_size, block_size, 8, 64)
    query = (torch.randn(length, 64, 64, device="cuda") * 0.18).bfloat16()
    key, value = (torch.randn(shape, device="cuda").bfloat16() for _ in range(2))
    planted, wanted = 777, torch.full((8, 64), 5.0, device="cuda").bfloat16()
    key.flatten(0, 1)[planted] = 3.0
    value.flatten(0, 1)[planted] = wanted
    query[-1] = 0.5  # the product with the planted key is 96 in log2, with others about 32 standard deviations less
    arguments = (key, value, torch.randperm(shape[0], device="cuda", dtype=torch.int32).unsqueeze(0))
    options = {"sinks": torch.randn(64, device="cuda"), "scale": math.log(2.0), "sliding_window": None}
    out = paged_attention(
        query, *arguments, cu_seqlens_q=torch.tensor([0, length], dtype=torch.int32, device="cuda"),
        seq_lens=torch.tensor([length], dtype=torch.int32, device="cuda"),
        max_query_len=length, max_kv_len=length, **options,
    )  # fmt: skip
    torch.testing.assert_close(out[-1].float(), torch.full((64, 64), 5.0, device="cuda"), atol=0.02, rtol=0)
    for end in (131, 64_001, length):
        rows = query[end - 3 : end].float()
        wide = (arguments[0].float(), arguments[1].float(), arguments[2])
        expected = paged_attention_reference(rows, *wide, query_lens=(3,), kv_lens=(end,), **options)
        error = (out[end - 3 : end].float() - expected).norm() / expected.norm()
        assert error < 0.004, f"rows before {end}: relative error {error:.5f}"
