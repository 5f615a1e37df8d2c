"""Train `rose-demo`, within a given number of minutes, and write the checkpoint.

python -m demo.train --out demo/out/rose-demo --minutes 8      # one GPU
python -m demo.train --out demo/out/smoke --smoke              # a few steps of a small model, on any machine
"""

import argparse
import json
import math
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from demo.config import DemoConfig
from demo.dataset import DOCUMENT_SHIFT, WEIGHT_SHIFT, WEIGHT_UNIT, BatchStream, Rows
from demo.export import read_checkpoint, write_checkpoint
from demo.held_out import Problem, as_table, grade, held_out_problems
from demo.model import DemoModel
from demo.tokenizer import BUNDLED, TOKENIZER_FILES
from rose.chat.tokenizer import load_tokenizer


@dataclass(frozen=True, slots=True)
class Recipe:
    """How long and how to train."""

    minutes: float
    max_steps: int | None
    num_rows: int
    row_length: int
    learning_rate: float
    warmup_steps: int
    weight_decay: float
    balance_weight: float
    num_workers: int
    num_problems: int
    log_every: int
    quick_grades: int
    compile: bool
    seed: int


def recipe_of(args: argparse.Namespace) -> Recipe:
    """The recipe that the command line asks for."""
    if args.smoke:
        return Recipe(
            minutes=args.minutes, max_steps=20, num_rows=4, row_length=512, learning_rate=3e-3, warmup_steps=5,
            weight_decay=0.0, balance_weight=0.01, num_workers=1, num_problems=1, log_every=1, quick_grades=0,
            compile=False, seed=args.seed,
        )  # fmt: skip
    return Recipe(
        minutes=args.minutes, max_steps=args.max_steps, num_rows=args.rows, row_length=512,
        learning_rate=args.learning_rate, warmup_steps=300, weight_decay=0.02, balance_weight=0.01,
        num_workers=max(1, min(12, (os.cpu_count() or 4) - 3)), num_problems=200, log_every=250, quick_grades=5,
        compile=not args.no_compile, seed=args.seed,
    )  # fmt: skip


SMOKE_CONFIG = DemoConfig(hidden_size=64, num_layers=2, num_q_heads=2, num_kv_heads=1, intermediate_size=64)


class Clock:
    """Time since the start of the program's work, as a share of the time that training may take."""

    def __init__(self, minutes: float) -> None:
        self._start = time.monotonic()
        self._budget_s = minutes * 60

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def progress(self) -> float:
        """0 at the start, 1 when time is up."""
        return min(1.0, self.elapsed_s / self._budget_s)


def learning_rate(recipe: Recipe, step: int, progress: float) -> float:
    """Linear warm-up by steps, then a cosine to zero by progress."""
    warmup = min(1.0, (step + 1) / recipe.warmup_steps)
    return recipe.learning_rate * warmup * 0.5 * (1 + math.cos(math.pi * progress))


def loss_of(model: DemoModel, rows: Tensor, balance_weight: float) -> tuple[Tensor, Tensor]:
    """The loss to minimise and the cross-entropy per target token, of packed rows as `demo.dataset` writes them."""
    tokens = rows & ((1 << DOCUMENT_SHIFT) - 1)
    documents = (rows >> DOCUMENT_SHIFT) & 0xFF
    weights = (rows >> WEIGHT_SHIFT).float() / WEIGHT_UNIT
    with torch.autocast(rows.device.type, torch.bfloat16):
        logits, balance = model(tokens, documents)
    each = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none")
    weights = weights[:, 1:].flatten()
    is_target = (weights > 0).float()
    entropy = (each.detach() * is_target).sum() / is_target.sum()
    return (each * weights).sum() / weights.sum() + balance_weight * balance, entropy


def make_optimizer(model: DemoModel, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW, with weight decay on matrices only."""
    matrices = [parameter for name, parameter in model.named_parameters() if _decays(name, parameter)]
    others = [parameter for name, parameter in model.named_parameters() if not _decays(name, parameter)]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.98), eps=1e-9, fused=True)


def _decays(name: str, parameter: Tensor) -> bool:
    return parameter.dim() > 1 and not name.endswith("bias") and "embed" not in name


def to_device(rows: Rows, device: torch.device) -> Tensor:
    """Packed rows as int64, copied without waiting."""
    host = torch.from_numpy(rows)
    if device.type == "cuda":
        return host.pin_memory().to(device, non_blocking=True).long()
    return host.long()


def compile_layers(model: DemoModel) -> None:
    """Compile one layer's code, which all layers share: a sixth of the time that the whole model would take."""
    for layer in model.layers:
        layer.compile(dynamic=False)


def train(
    model: DemoModel, stream: BatchStream, recipe: Recipe, clock: Clock, problems: list[Problem]
) -> list[dict[str, float]]:
    """Train until the time or the steps are over; returns the log."""
    device = model.lm_head.weight.device
    optimizer = make_optimizer(model, recipe)
    log: list[dict[str, float]] = []
    recent: list[Tensor] = []
    step, first_s = 0, clock.elapsed_s
    grade_at = [(i + 1) / (recipe.quick_grades + 1) for i in range(recipe.quick_grades)]
    quick = problems[:: max(1, recipe.num_problems // 32)]
    while clock.progress < 1 and step != recipe.max_steps:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step, clock.progress)
        loss, entropy = loss_of(model, to_device(stream.next(), device), recipe.balance_weight)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent.append(torch.stack((entropy, loss.detach(), norm)))
        step += 1
        if step % recipe.log_every == 0:
            entropy_mean, loss_mean, norm_mean = torch.stack(recent).mean(0).tolist()
            recent.clear()
            rate = step * recipe.num_rows * recipe.row_length / (clock.elapsed_s - first_s)
            log.append({"step": step, "seconds": round(clock.elapsed_s, 1), "entropy": entropy_mean, "loss": loss_mean})
            print(
                f"step {step}  {clock.elapsed_s:.0f} s  entropy {entropy_mean:.4f}  loss {loss_mean:.4f}  "
                f"norm {norm_mean:.2f}  {rate / 1e6:.2f} M tokens/s  repeated {stream.num_repeated}",
                flush=True,
            )
        if grade_at and clock.progress >= grade_at[0]:
            grade_at.pop(0)
            print(f"exactly right at step {step}, per cent\n{as_table(grade(model, quick))}", flush=True)
    return log


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write the checkpoint to")
    parser.add_argument("--tokenizer", type=Path, default=BUNDLED, help="folder with the tokenizer's files")
    parser.add_argument("--minutes", type=float, default=8.0, help="time for everything but export and grading")
    parser.add_argument("--max-steps", type=int, help="stop earlier, after so many steps")
    parser.add_argument("--rows", type=int, default=128, help="rows of 512 tokens in a batch")
    parser.add_argument("--learning-rate", type=float, default=1.5e-3)
    parser.add_argument("--report", type=Path, help="file for the log and the accuracies, as JSON")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="a few steps of a small model")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    recipe, clock = recipe_of(args), Clock(args.minutes)
    config = SMOKE_CONFIG if args.smoke else DemoConfig()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copyfile(args.tokenizer / name, args.out / name)
    tokenizer = load_tokenizer(args.out)
    stream = BatchStream(str(args.out), recipe.num_rows, recipe.row_length, recipe.num_workers, recipe.seed + 1)
    problems = held_out_problems(str(args.out), recipe.num_problems, num_workers=max(1, recipe.num_workers // 2))
    print(f"tokenizer, workers and {len(problems)} held-out problems ready after {clock.elapsed_s:.0f} s", flush=True)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    model = DemoModel(config)
    model.initialize(recipe.seed)
    model.to(device)
    if recipe.compile:
        compile_layers(model)
    try:
        log = train(model, stream, recipe, clock, problems)
    finally:
        stream.close()
        write_checkpoint(model, tokenizer, args.out)
    size = sum(file.stat().st_size for file in args.out.iterdir())
    print(f"checkpoint of {size / 1e6:.2f} MB written after {clock.elapsed_s:.0f} s", flush=True)

    results = grade(read_checkpoint(args.out, config).to(device), problems)
    print(f"the written checkpoint, exactly right on held-out problems, per cent\n{as_table(results)}", flush=True)
    if args.report:
        args.report.parent.mkdir(parents=True, exist_ok=True)
        args.report.write_text(json.dumps({"held_out_exact": results, "log": log}, indent=1) + "\n")


if __name__ == "__main__":
    main()
