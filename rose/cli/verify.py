"""`rose verify`: a model's logits and greedy answers in each number format, against a slow float32 oracle."""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import cyclopts
from rich.table import Table

from rose.cli.load_progress import load_progress
from rose.cli.places import choose_device
from rose.cli.step_log import StepLog
from rose.cli.tables import table_console
from rose.cli.verify_prompts import Prompts
from rose.errors import ConfigError
from rose.log import setup_logging

if TYPE_CHECKING:
    from torch import Tensor

    from rose.models.base import CausalLM
    from rose.weights.agreement import Agreement, Comparison, Text
    from rose.weights.loader import FormatChoice

_FORMATS: tuple[tuple["FormatChoice", "FormatChoice"], ...] = (
    ("bf16", "bf16"),
    ("mxfp4", "bf16"),
    ("fp8", "bf16"),
    ("fp8-block", "bf16"),
    ("bf16", "fp8"),
    ("fp8", "fp8"),
    ("fp8-block", "fp8-block"),
)


def verify(
    model: str,
    /,
    *,
    against: Literal["reference", "transformers"] = "reference",
    experts: Literal["all", "auto", "mxfp4", "fp8", "fp8-block", "bf16"] = "all",
    dense: Literal["auto", "bf16", "fp8", "fp8-block"] = "auto",
    dtype: Literal["float32", "bfloat16"] = "float32",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    prompts: Path | None = None,
    num_prompts: int | None = None,
    max_tokens: int = 64,
    as_json: Annotated[bool, cyclopts.Parameter(name="--json", negative="")] = False,
) -> None:
    """Compare a model in each number format with a slow float32 oracle, on prompts and the oracle's answers to them.

    Positions of the answers, where the model speaks, and of the prompts are told apart, and each is also compared with
    the model whose weights and activations are not rounded (bf16). The prompts that come with rose are chats, or plain
    texts for a checkpoint that has no chat format.

    Parameters
    ----------
    model
        A folder, a bundled name such as rose-demo, or a Hugging Face repository.
    against
        rose's own definition of the model in plain torch, which reads one matrix at a time; or transformers, which must
        be installed, reads the hf layout only and holds the whole model in float32.
    experts
        The format of the experts' weights to compare; all compares the usual pairs of formats.
    dense
        The format of attention's weights and the unembedding's; with all experts, auto is every one in those pairs.
    dtype
        Of activations.
    device
        Where rose computes; the oracle is on the CPU.
    prompts
        A file of JSON lines to use instead of the prompts that come with rose. Each is {"messages": [...]}, with
        "tools" and "reasoning_effort" as in /v1/chat/completions, {"prompt": text} or {"prompt_token_ids": [id, ...]}.
    num_prompts
        Use only so many, from the first.
    max_tokens
        The most tokens of an answer.
    as_json
        Print one JSON object instead of tables.

    """
    import torch

    from rose.models.registry import plan_model
    from rose.weights.agreement import compare, greedy_answers, model_logits
    from rose.weights.checkpoint import Checkpoint
    from rose.weights.loader import load_from
    from rose.weights.oracle import reference_oracle, transformers_oracle
    from rose.weights.resolve import resolve_checkpoint

    setup_logging("verify")
    chosen = choose_device(device)
    if max_tokens < 0 or (num_prompts is not None and num_prompts < 1):
        raise ConfigError("--max-tokens is at least 0 and --num-prompts at least 1")
    checkpoint = Checkpoint(resolve_checkpoint(model))
    stored = plan_model(checkpoint.config, checkpoint.tensors.keys(), str(checkpoint.config_path)).stored
    maker = Prompts(checkpoint.folder, int(checkpoint.config["vocab_size"]))
    prompt_ids = (maker.built_in() if prompts is None else maker.of_file(prompts))[:num_prompts]
    if not prompt_ids:
        raise ConfigError(f"{prompts} has no prompts")
    steps = StepLog()

    def at_layer(layer: int, num_layers: int) -> None:
        steps.at("layer", layer, num_layers)

    oracle = reference_oracle(checkpoint, at_layer) if against == "reference" else transformers_oracle(checkpoint)

    def load(experts: "FormatChoice", dense: "FormatChoice") -> "CausalLM":
        activations = getattr(torch, dtype)
        with load_progress(model) as progress:
            return load_from(
                checkpoint, device=chosen, dtype=activations, experts=experts, dense=dense, progress=progress
            )

    passes = itertools.count(1)

    def told_oracle(texts: "list[list[int]]") -> "list[Tensor]":
        steps.begin(f"oracle, pass {next(passes)}: {len(texts)} texts of {sum(map(len, texts))} tokens")
        return oracle(texts)

    def told_logits(loaded: "CausalLM", texts: "Sequence[Text]") -> "Callable[[Text], Tensor]":
        numbers = itertools.count(1)

        def logits(text: "Text") -> "Tensor":
            steps.at("text", next(numbers), len(texts))
            return model_logits(loaded, text.token_ids)

        return logits

    # MXFP4 holds the values of bf16 experts in less memory.
    base = load("mxfp4" if stored.experts == "mxfp4" else "bf16", "bf16")
    steps.begin(f"drafting answers to {len(prompt_ids)} prompts")
    texts, expected = greedy_answers(told_oracle, base, prompt_ids, max_tokens, {*maker.stop_ids, *base.eos_token_ids})
    steps.begin("the model whose weights are not rounded")
    unrounded = list(map(told_logits(base, texts), texts))
    del base
    rows: list[_Row] = []
    pairs = _chosen_formats(experts, dense)
    for number, (expert_format, dense_format) in enumerate(pairs, start=1):
        steps.begin(f"format {number} of {len(pairs)}: experts {expert_format}, dense {dense_format}")
        loaded = load(expert_format, dense_format)
        comparison = compare(told_logits(loaded, texts), (expected, unrounded), texts)
        rows.append(_Row(expert_format, dense_format, comparison))
        del loaded
    if as_json:
        report = {"model": model, "against": against, "dtype": dtype, "device": device, "num_prompts": len(texts)}
        print(json.dumps({**report, "formats": [row.as_json() for row in rows]}, indent=2))
    else:
        _print_tables(f"{model} in {dtype} on {device}, against {against} in float32", rows)


@dataclass(frozen=True, slots=True)
class _Row:
    """A pair of formats and how the model in them compares with the oracle and with the unrounded model."""

    experts: "FormatChoice"
    dense: "FormatChoice"
    comparison: "Comparison"

    def as_json(self) -> dict[str, Any]:
        """Of answers and of prompts the agreement with each."""
        comparison = self.comparison
        kinds = {"answers": comparison.answers, "prompts": comparison.prompts}
        return {
            "experts": self.experts,
            "dense": self.dense,
            "same_answers": comparison.same_answers,
            "num_answers": comparison.num_answers,
            **{
                kind: {
                    name: None if agreement is None else asdict(agreement)
                    for name, agreement in zip(("oracle", "bf16"), agreements, strict=True)
                }
                for kind, agreements in kinds.items()
            },
        }


def _chosen_formats(
    experts: "Literal['all'] | FormatChoice", dense: "FormatChoice"
) -> list[tuple["FormatChoice", "FormatChoice"]]:
    if experts != "all":
        return [(experts, dense)]
    return [pair for pair in _FORMATS if dense in ("auto", pair[1])]


def _print_tables(title: str, rows: "Sequence[_Row]") -> None:
    console = table_console()
    console.print(title, markup=False)
    for kind in ("answers", "prompts"):
        agreements = [row.comparison.answers if kind == "answers" else row.comparison.prompts for row in rows]
        num_positions = max(agreement.num_positions if agreement else 0 for agreement, _ in agreements)
        columns = ["experts", "dense", "max abs", "RMS", "relative RMS", "top-1", "mean KL", "top-1, bf16", "KL, bf16"]
        table = Table(*columns, "differ (near ties)", title=f"{kind}: {num_positions:,} positions")
        if kind == "answers":
            table.add_column("same answers")
        for row, (oracle, bf16) in zip(rows, agreements, strict=True):
            cells = [row.experts, row.dense, *_cells(oracle, bf16)]
            if kind == "answers":
                cells.append(f"{row.comparison.same_answers} of {row.comparison.num_answers}")
            table.add_row(*cells)
        console.print(table)


def _cells(oracle: "Agreement | None", bf16: "Agreement | None") -> list[str]:
    if oracle is None or bf16 is None:
        return ["–"] * 8
    return [
        f"{oracle.max_abs:.3g}",
        f"{oracle.rms:.3g}",
        f"{oracle.relative_rms:.2%}",
        f"{oracle.top1:.2%}",
        f"{oracle.mean_kl:.2g}",
        f"{bf16.top1:.2%}",
        f"{bf16.mean_kl:.2g}",
        f"{bf16.num_different} ({bf16.num_near_ties})",
    ]
