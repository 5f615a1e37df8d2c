"""Accuracy on held-out problems, without decoding.

Every problem has one right reply, token by token. Greedy decoding writes exactly that reply if and only if each of its
tokens is the likeliest after the prompt and the tokens before it. So one forward pass over prompt and reply tells
whether greedy decoding would be right, working included. `demo.evaluate` measures the same on a running server, where
only the answer counts.
"""

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from random import Random

import numpy as np
import torch

from demo.model import DemoModel
from demo.targets import Encoded, Encoder
from demo.tasks.mixture import BUILDERS, EFFORTS, build
from rose.chat.conversation import ReasoningEffort
from rose.chat.tokenizer import load_tokenizer

Accuracies = dict[str, dict[ReasoningEffort, float]]


@dataclass(frozen=True, slots=True)
class Problem:
    """An encoded held-out example."""

    task: str
    effort: ReasoningEffort
    encoded: Encoded


def _problems_of(task: str, tokenizer_path: str, count: int, seed: int) -> list[Problem]:
    encode = Encoder(load_tokenizer(tokenizer_path))
    return [
        Problem(task, effort, encode(build(task, Random(f"{seed}/{task}/{effort}/{index}"), "held_out", effort)))
        for effort in EFFORTS
        for index in range(count)
    ]


def held_out_problems(tokenizer_path: str, count: int, seed: int = 0, num_workers: int = 2) -> list[Problem]:
    """`count` held-out problems for each task and effort. Call it before CUDA is touched: it forks."""
    make = partial(_problems_of, tokenizer_path=tokenizer_path, count=count, seed=seed)
    with ProcessPoolExecutor(num_workers, get_context("fork")) as pool:
        return [problem for problems in pool.map(make, BUILDERS) for problem in problems]


@torch.no_grad()
def grade(model: DemoModel, problems: Sequence[Problem], tokens_per_batch: int = 65536) -> Accuracies:
    """The share of replies that are exactly right, by task and effort; the row `all` holds the means."""
    device = model.lm_head.weight.device
    right: dict[tuple[str, str], list[bool]] = defaultdict(list)
    ordered = sorted(problems, key=lambda problem: len(problem.encoded))
    while ordered:
        length = -(-len(ordered[-1].encoded) // 64) * 64
        count = max(1, tokens_per_batch // length)
        ordered, batch = ordered[:-count], ordered[-count:]
        for problem, is_right in zip(batch, _grade_batch(model, batch, length, device), strict=True):
            right[problem.task, problem.effort].append(is_right)
    table: Accuracies = {
        task: {effort: float(np.mean(right[task, effort])) for effort in EFFORTS if right[task, effort]}
        for task in dict.fromkeys(problem.task for problem in problems)
    }
    columns = {effort: [row[effort] for row in table.values() if effort in row] for effort in EFFORTS}
    table["all"] = {effort: float(np.mean(column)) for effort, column in columns.items() if column}
    return table


def _grade_batch(model: DemoModel, batch: Sequence[Problem], length: int, device: torch.device) -> list[bool]:
    tokens = np.zeros((len(batch), length), dtype=np.int64)
    is_target = np.zeros((len(batch), length), dtype=bool)
    for row, problem in enumerate(batch):
        start, end = len(problem.encoded.prompt), len(problem.encoded)
        tokens[row, :end] = problem.encoded.prompt + problem.encoded.target
        is_target[row, start:end] = True
    ids, mask = torch.from_numpy(tokens).to(device), torch.from_numpy(is_target).to(device)
    # Eagerly: compiling for each of these shapes would take longer than all the grading.
    with torch.autocast(device.type, torch.bfloat16), torch.compiler.set_stance("force_eager"):
        logits, _ = model(ids, torch.ones_like(ids))
    hits = logits[:, :-1].argmax(-1) == ids[:, 1:]
    result: list[bool] = (hits | ~mask[:, 1:]).all(1).tolist()
    return result


def as_table(results: Accuracies) -> str:
    """A Markdown table of accuracies in per cent."""
    lines = ["| task | " + " | ".join(EFFORTS) + " |", "|---|" + "---:|" * len(EFFORTS)]
    for task, row in results.items():
        cells = [f"{100 * row[effort]:.1f}" if effort in row else "" for effort in EFFORTS]
        lines.append(f"| {task} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
