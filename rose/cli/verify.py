"""`rose verify`: a model's logits and greedy tokens in each number format, against a slow float32 oracle."""

import importlib
import json
import random
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import cyclopts
from rich.console import Console
from rich.table import Table

from rose.errors import ConfigError
from rose.log import setup_logging

if TYPE_CHECKING:
    from torch import Tensor

    from rose.weights.checkpoint import Checkpoint
    from rose.weights.loader import FormatChoice

_PROMPTS = (
    "The capital of France is",
    "What is 17 plus 25? Think step by step, then give the number alone.",
    "Write a list of five animals, one on each line, in alphabetical order.",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Der Zug nach Hamburg fährt um 14:05 Uhr von Gleis 7 ab. Wann und wo fährt der Zug ab?",
)
_FORMATS: tuple[tuple["FormatChoice", "FormatChoice"], ...] = (
    ("bf16", "bf16"),
    ("mxfp4", "bf16"),
    ("fp8", "bf16"),
    ("fp8-block", "bf16"),
    ("bf16", "fp8"),
    ("fp8", "fp8"),
    ("fp8-block", "fp8-block"),
)
_RANDOM_PROMPT_TOKENS = 24

Oracle = Callable[[list[list[int]]], "list[Tensor]"]


def verify(
    model: str,
    /,
    *,
    against: Literal["reference", "transformers"] = "reference",
    experts: Literal["all", "auto", "mxfp4", "fp8", "fp8-block", "bf16"] = "all",
    dense: Literal["auto", "bf16", "fp8", "fp8-block"] = "auto",
    dtype: Literal["float32", "bfloat16"] = "float32",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    max_tokens: int = 16,
    prompts: int = len(_PROMPTS),
    as_json: Annotated[bool, cyclopts.Parameter(name="--json", negative="")] = False,
) -> None:
    """Compare a model with a slow float32 oracle, on fixed prompts and what follows them greedily.

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
    max_tokens
        Greedy tokens after each prompt.
    prompts
        How many of the fixed prompts to use.
    as_json
        Print one JSON object instead of a table.

    """
    import torch

    from rose.weights.agreement import greedy_tokens, measure_agreement, model_logits
    from rose.weights.checkpoint import Checkpoint
    from rose.weights.loader import load_from
    from rose.weights.resolve import resolve_checkpoint

    setup_logging("verify", level="WARNING")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if max_tokens < 0 or not 1 <= prompts <= len(_PROMPTS):
        raise ConfigError(f"--max-tokens is at least 0 and --prompts from 1 to {len(_PROMPTS)}")
    checkpoint = Checkpoint(resolve_checkpoint(model))
    oracle = _reference(checkpoint) if against == "reference" else _transformers(checkpoint)
    texts = _prompt_ids(checkpoint)[:prompts]
    oracle_tokens = _continue_greedily(oracle, texts, max_tokens)
    texts_and_tokens = [text + tokens for text, tokens in zip(texts, oracle_tokens, strict=True)]
    expected = oracle(texts_and_tokens)
    results: list[dict[str, Any]] = []
    for expert_format, dense_format in _chosen_formats(experts, dense):
        loaded = load_from(
            checkpoint, device=device, dtype=getattr(torch, dtype), experts=expert_format, dense=dense_format
        )
        agreement = measure_agreement(
            [model_logits(loaded, text) for text in texts_and_tokens],
            expected,
            [greedy_tokens(loaded, text, max_tokens) for text in texts],
            oracle_tokens,
        )
        results.append({"experts": expert_format, "dense": dense_format, **asdict(agreement)})
        del loaded
    if as_json:
        report = {"model": model, "against": against, "dtype": dtype, "device": device, "formats": results}
        print(json.dumps(report, indent=2))
    else:
        _print_table(f"{model} in {dtype} on {device}, against {against} in float32", results)


def _chosen_formats(
    experts: "Literal['all'] | FormatChoice", dense: "FormatChoice"
) -> list[tuple["FormatChoice", "FormatChoice"]]:
    if experts != "all":
        return [(experts, dense)]
    return [pair for pair in _FORMATS if dense in ("auto", pair[1])]


def _reference(checkpoint: "Checkpoint") -> Oracle:
    from rose.models.gpt_oss.config import read_config
    from rose.models.gpt_oss.reference import reference_logits
    from rose.weights.float_weights import FloatWeights

    config = read_config(checkpoint.config, str(checkpoint.config_path))
    weights = FloatWeights(checkpoint)
    return lambda texts: reference_logits(config, weights, texts)


def _transformers(checkpoint: "Checkpoint") -> Oracle:
    import torch

    from rose.models.gpt_oss.weight_map import find_stored

    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError:
        raise ConfigError("--against transformers needs transformers 5: pip install transformers") from None
    if find_stored(checkpoint.tensors).layout != "hf":
        raise ConfigError("transformers reads the hf layout only; use --against reference")
    options: dict[str, Any] = {}
    if "quantization_config" in checkpoint.config:
        options["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
    model: Any = transformers.GptOssForCausalLM.from_pretrained(
        checkpoint.folder,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        **options,
    )
    model = model.float().eval()

    def logits(texts: "list[list[int]]") -> "list[Tensor]":
        with torch.inference_mode():
            return [model(torch.tensor([text])).logits[0] for text in texts]

    return logits


def _continue_greedily(oracle: Oracle, texts: list[list[int]], count: int) -> list[list[int]]:
    tokens: list[list[int]] = [[] for _ in texts]
    for _ in range(count):
        logits = oracle([text + more for text, more in zip(texts, tokens, strict=True)])
        for more, rows in zip(tokens, logits, strict=True):
            more.append(int(rows[-1].argmax()))
    return tokens


def _prompt_ids(checkpoint: "Checkpoint") -> list[list[int]]:
    """The fixed prompts in the model's own tokens; without a tokenizer, tokens at random but always the same."""
    from rose.chat.tokenizer import load_tokenizer

    if (Path(checkpoint.folder) / "tokenizer.json").is_file():
        tokenizer = load_tokenizer(checkpoint.folder)
        return [tokenizer.encode(prompt) for prompt in _PROMPTS]
    vocab_size = int(checkpoint.config["vocab_size"])
    generator = random.Random(0)
    return [[generator.randrange(vocab_size) for _ in range(_RANDOM_PROMPT_TOKENS)] for _ in _PROMPTS]


def _print_table(title: str, results: list[dict[str, Any]]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 1000)
    columns = ("experts", "dense", "max abs", "RMS", "relative RMS", "top-1", "mean KL", "greedy tokens")
    table = Table(*columns, title=title)
    for row in results:
        table.add_row(
            row["experts"],
            row["dense"],
            f"{row['max_abs']:.3g}",
            f"{row['rms']:.3g}",
            f"{row['relative_rms']:.2%}",
            f"{row['top1']:.1%}",
            f"{row['mean_kl']:.2g}",
            f"{row['same_greedy_tokens']} of {row['num_greedy_tokens']}",
        )
    console.print(table)
