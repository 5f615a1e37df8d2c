"""How well a model agrees with an oracle: the numbers of `rose verify`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rose.layers.single_request import SingleRequestCache
from rose.models.base import CausalLM


@dataclass(frozen=True, slots=True)
class Agreement:
    """Over every position of every text, in logits and in what follows from them.

    max_abs, rms: of the difference of logits. relative_rms: that, over the RMS of the oracle's logits around their
    mean. top1: share of positions where both have the same best token. mean_kl: of the oracle's distribution from the
    model's, in nats. same_greedy_tokens: of all greedy tokens, how many are the oracle's, counted up to the first that
    differs in each text; num_greedy_tokens: all.
    """

    max_abs: float
    rms: float
    relative_rms: float
    top1: float
    mean_kl: float
    same_greedy_tokens: int
    num_greedy_tokens: int


@torch.inference_mode()
def model_logits(model: CausalLM, text: list[int]) -> Tensor:
    """The logits after each token, [len(text), vocab_size] float32 on the CPU."""
    cache = SingleRequestCache(model.attention_specs, len(text), device=model.device, dtype=model.dtype)
    return model.compute_logits(model.forward(cache.batch(text))).float().cpu()


@torch.inference_mode()
def greedy_tokens(model: CausalLM, prompt: list[int], count: int) -> list[int]:
    """The `count` tokens that follow a prompt, each the best one after those before it."""
    cache = SingleRequestCache(model.attention_specs, len(prompt) + count, device=model.device, dtype=model.dtype)
    tokens: list[int] = []
    step = prompt
    for _ in range(count):
        hidden = model.forward(cache.batch(step))
        token = int(model.compute_logits(hidden[-1:]).argmax())
        tokens.append(token)
        step = [token]
    return tokens


def measure_agreement(
    ours: Sequence[Tensor],
    oracle: Sequence[Tensor],
    our_tokens: Sequence[list[int]],
    oracle_tokens: Sequence[list[int]],
) -> Agreement:
    """Compare logits, [length, vocab_size] float32 for each text, and greedy tokens."""
    mine, theirs = torch.cat(list(ours)), torch.cat(list(oracle))
    difference = mine - theirs
    centered = theirs - theirs.mean(-1, keepdim=True)
    log_p, log_q = torch.log_softmax(theirs, dim=-1), torch.log_softmax(mine, dim=-1)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    return Agreement(
        max_abs=float(difference.abs().max()),
        rms=float(difference.square().mean().sqrt()),
        relative_rms=float(difference.square().mean().sqrt() / centered.square().mean().sqrt()),
        top1=float((mine.argmax(-1) == theirs.argmax(-1)).float().mean()),
        mean_kl=float(kl.mean()),
        same_greedy_tokens=sum(map(_common_prefix, our_tokens, oracle_tokens)),
        num_greedy_tokens=sum(map(len, oracle_tokens)),
    )


def _common_prefix(ours: list[int], theirs: list[int]) -> int:
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a != b:
            return index
    return len(theirs)
