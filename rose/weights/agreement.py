"""How well a model agrees with an oracle: the numbers of `rose verify`."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rose.layers.single_request import SingleRequestCache
from rose.models.base import CausalLM

# From token ids of several texts to the logits after each token of each, [len(text), vocab_size] float32.
Oracle = Callable[[list[list[int]]], list[Tensor]]

# Two logits nearer than this are as good as equal: the probabilities are within 28 % of each other.
NEAR_TIE = 0.25


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the answer to it. num_prompt_tokens: how many of the ids are the prompt, at least one."""

    token_ids: list[int]
    num_prompt_tokens: int

    @property
    def answer(self) -> list[int]:
        """The ids that follow the prompt."""
        return self.token_ids[self.num_prompt_tokens :]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Over a set of positions, in logits and in what follows from them.

    max_abs, rms: of the difference of logits. relative_rms: that, over the RMS of the other's logits around their mean.
    top1: share of positions where both have the same best token. num_different: positions where they have not;
    num_near_ties: those of them at which the other's two best logits are less than `NEAR_TIE` apart. mean_kl: of the
    other's distribution from the model's, in nats.
    """

    num_positions: int
    max_abs: float
    rms: float
    relative_rms: float
    top1: float
    num_different: int
    num_near_ties: int
    mean_kl: float


class AgreementMeter:
    """Adds up the agreement of a model with another, position by position."""

    def __init__(self) -> None:
        self._num_positions = self._num_logits = self._num_different = self._num_near_ties = 0
        self._max_abs = self._squares = self._other_squares = self._kl = 0.0

    def add(self, ours: Tensor, other: Tensor) -> None:
        """Logits of both at the same positions, [n, vocab_size] float32."""
        if len(ours) == 0:
            return
        difference = ours - other
        # In float64, since the smallest divergences are below what float32 sums come out at.
        log_p, log_q = (torch.log_softmax(logits, dim=-1, dtype=torch.float64) for logits in (other, ours))
        best = other.topk(2, dim=-1)
        is_different = ours.argmax(-1) != best.indices[:, 0]
        is_near_tie = best.values[:, 0] - best.values[:, 1] < NEAR_TIE
        self._num_positions += len(ours)
        self._num_logits += ours.numel()
        self._num_different += int(is_different.sum())
        self._num_near_ties += int((is_different & is_near_tie).sum())
        self._max_abs = max(self._max_abs, float(difference.abs().max()))
        self._squares += float(difference.square().sum(dtype=torch.float64))
        self._other_squares += float((other - other.mean(-1, keepdim=True)).square().sum(dtype=torch.float64))
        self._kl += float((log_p.exp() * (log_p - log_q)).sum())

    def result(self) -> Agreement | None:
        """The agreement so far; None where nothing was added."""
        if self._num_positions == 0:
            return None
        return Agreement(
            num_positions=self._num_positions,
            max_abs=self._max_abs,
            rms=(self._squares / self._num_logits) ** 0.5,
            relative_rms=(self._squares / self._other_squares) ** 0.5,
            top1=1 - self._num_different / self._num_positions,
            num_different=self._num_different,
            num_near_ties=self._num_near_ties,
            mean_kl=self._kl / self._num_positions,
        )


@torch.inference_mode()
def model_logits(model: CausalLM, token_ids: list[int]) -> Tensor:
    """The logits after each token, [len(token_ids), vocab_size] float32 on the CPU."""
    cache = SingleRequestCache(model.attention_specs, len(token_ids), device=model.device, dtype=model.dtype)
    return model.compute_logits(model.forward(cache.batch(token_ids))).float().cpu()


def greedy_answers(
    oracle: Oracle, draft: CausalLM, prompts: Sequence[list[int]], max_tokens: int, stop_ids: Collection[int]
) -> tuple[list[Text], list[Tensor]]:
    """What the oracle answers to each prompt, taking its best tokens, and its logits after each token but the last.

    An answer ends with one of `stop_ids`, or after `max_tokens`. The oracle is slow, and sees whole texts only. So a
    quicker model drafts what is left of the answers; of a draft all is kept up to where the oracle has another best
    token, and that token. The answers are the oracle's whatever the drafts are; good ones cost a single pass.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    logits: list[Tensor] = [torch.empty(0)] * len(prompts)
    is_open = [True] * len(prompts)
    while any(is_open):
        drafts = {
            index: answers[index]
            + _continue(draft, prompts[index] + answers[index], max_tokens - len(answers[index]), stop_ids)
            for index in range(len(prompts))
            if is_open[index]
        }
        rows_of = zip(drafts, oracle([prompts[index] + tokens for index, tokens in drafts.items()]), strict=True)
        for index, rows in rows_of:
            best = rows[len(prompts[index]) - 1 :].argmax(-1).tolist()
            # The best token after the draft's last one belongs to no answer.
            answer = _agreed(drafts[index], best[:-1])
            answers[index] = answer
            logits[index] = rows[: len(prompts[index]) + len(answer) - 1]
            is_open[index] = len(answer) < max_tokens and not (answer and answer[-1] in stop_ids)
    texts = [Text(prompt + answer, len(prompt)) for prompt, answer in zip(prompts, answers, strict=True)]
    return texts, logits


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of one model with several others.

    answers, prompts: the agreement with each of these, at the positions that decide an answer's tokens and at those
    before them; None where there are no such positions. same_answers: how many answers, of num_answers, the model gives
    as well, token for token.
    """

    answers: list[Agreement | None]
    prompts: list[Agreement | None]
    same_answers: int
    num_answers: int


def compare(ours: Callable[[Text], Tensor], others: Sequence[Sequence[Tensor]], texts: Sequence[Text]) -> Comparison:
    """Compare logits after the tokens of each text: `ours`, computed here, with those of each of the others.

    A text's last row decides nothing, and the others may lack it. A position is counted once, however many texts begin
    alike; see `distinct_contexts`.
    """
    answers, prompts = ([AgreementMeter() for _ in others] for _ in range(2))
    same_answers = 0
    for number, (text, is_new) in enumerate(zip(texts, distinct_contexts(texts), strict=True)):
        length, first = len(text.token_ids) - 1, text.num_prompt_tokens - 1
        counts = torch.tensor(is_new[:length], dtype=torch.bool)
        mine = ours(text)[:length]
        same_answers += bool(text.answer) and mine[first:].argmax(-1).tolist() == text.answer
        for other, in_answer, in_prompt in zip(others, answers, prompts, strict=True):
            theirs = other[number][:length]
            in_prompt.add(mine[:first][counts[:first]], theirs[:first][counts[:first]])
            in_answer.add(mine[first:][counts[first:]], theirs[first:][counts[first:]])
    return Comparison(
        answers=[meter.result() for meter in answers],
        prompts=[meter.result() for meter in prompts],
        same_answers=same_answers,
        num_answers=sum(bool(text.answer) for text in texts),
    )


def distinct_contexts(texts: Sequence[Text]) -> Iterator[list[bool]]:
    """For each text and each of its positions, whether no text before begins with the same tokens up to there.

    Chats begin alike. Where they do the logits are the same, and counting them again would only look like evidence.
    """
    children: dict[tuple[int, int], int] = {}  # (node, token) -> node: all beginnings as a tree
    for text in texts:
        node, is_new = 0, []
        for token in text.token_ids:
            num_known = len(children)
            node = children.setdefault((node, token), num_known + 1)
            is_new.append(len(children) > num_known)
        yield is_new


@torch.inference_mode()
def _continue(model: CausalLM, prompt: list[int], max_tokens: int, stop_ids: Collection[int]) -> list[int]:
    """The greedy tokens after a prompt, up to and including one that stops."""
    cache = SingleRequestCache(model.attention_specs, len(prompt) + max_tokens, device=model.device, dtype=model.dtype)
    tokens: list[int] = []
    step = prompt
    while len(tokens) < max_tokens and not (tokens and tokens[-1] in stop_ids):
        hidden = model.forward(cache.batch(step))
        tokens.append(int(model.compute_logits(hidden[-1:]).argmax()))
        step = tokens[-1:]
    return tokens


def _agreed(draft: list[int], best: list[int]) -> list[int]:
    """The draft up to where the oracle has another token, and that one."""
    for index, (drafted, token) in enumerate(zip(draft, best, strict=True)):
        if drafted != token:
            return [*draft[:index], token]
    return draft
