"""`rose generate`: complete prompts offline, JSON lines out."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

from cyclopts import Parameter

from rose.cli.load_progress import load_progress
from rose.cli.streams import json_line
from rose.engine.sampling_params import SamplingParams
from rose.errors import RequestError
from rose.log import setup_logging

if TYPE_CHECKING:
    from rose.llm import Completion, Generation

_ANY_TEXT = Parameter(allow_leading_hyphen=True, negative=())  # `-` is a file, and a prompt may be a list


def generate(
    model: str,
    /,
    *,
    prompt: Annotated[list[str] | None, _ANY_TEXT] = None,
    input: Annotated[Path | None, _ANY_TEXT] = None,  # noqa: A002 - it is the option's name
    max_tokens: int | None = 128,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    n: int = 1,
    seed: int | None = None,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    ignore_eos: bool = False,
    device: str = "auto",
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
    max_model_len: int | None = None,
    max_num_seqs: int = 128,
    gpu_memory_utilization: float = 0.9,
) -> None:
    """Complete prompts without a server and print one JSON object for each completion.

    Prompts are plain text, without a chat format. With neither --prompt nor --input, standard input is one prompt.
    The exit status is 1 if a completion failed; its row has the `error`.

    Parameters
    ----------
    model
        A bundled model such as rose-demo, a folder, or a repository of the Hugging Face Hub.
    prompt
        A prompt; may be given several times.
    input
        A file of JSON lines, each {"prompt": text} or {"prompt_token_ids": [id, ...]}; - is standard input.
    max_tokens
        The most tokens to generate for each completion.
    temperature
        0 always takes the best token.
    top_p
        Draw from the smallest set of tokens with this much probability.
    top_k
        Draw from this many best tokens; 0 is all.
    min_p
        Drop tokens less probable than this share of the best.
    n
        Completions of each prompt.
    seed
        The same seed gives the same tokens.
    logprobs
        Print log-probabilities, and those of this many alternatives.
    prompt_logprobs
        The same for the prompt's tokens but the first.
    ignore_eos
        Do not end at the model's end-of-text tokens.
    device
        auto, cpu, cuda or cuda:N.
    dtype
        Of activations and KV cache.
    max_model_len
        Tokens of prompt and output together that one request may have.
    max_num_seqs
        Requests that run at once.
    gpu_memory_utilization
        Share of the GPU's memory to use.
    """
    setup_logging("generate", level="WARNING")
    prompts = list(_read_prompts(prompt, input))
    params = SamplingParams(
        n=n,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
    )
    params.validate()
    from rose.llm import LLM  # imports torch; a mistake in the input is told before that

    with load_progress(model) as progress:
        llm = LLM(
            model,
            progress=progress,
            device=device,
            dtype=dtype,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            gpu_memory_utilization=gpu_memory_utilization,
        )
    with llm:
        generations = llm.generate(prompts, params)
    for index, generation in enumerate(generations):
        for completion in generation.outputs:
            print(json_line(_to_json(index, generation, completion)))
    _tell_failures(generations)


def _tell_failures(generations: "list[Generation]") -> None:
    """End with status 1 if a completion failed: its row says why, and a script should not have to look."""
    outputs = [completion for generation in generations for completion in generation.outputs]
    num_failed = sum(completion.error is not None for completion in outputs)
    if num_failed:
        sys.stdout.flush()
        print(f"rose: error: {num_failed} of {len(outputs)} completions failed; their rows say why", file=sys.stderr)
        sys.exit(1)


def _read_prompts(texts: list[str] | None, file: Path | None) -> Iterator[str | list[int]]:
    if texts and file is not None:
        raise RequestError("--prompt and --input both give prompts; use one of them")
    if texts:
        yield from texts
    elif file is None:
        yield sys.stdin.read().removesuffix("\n")
    elif str(file) == "-":
        yield from _parse_lines(sys.stdin, "standard input")
    else:
        try:
            with file.open(encoding="utf-8") as lines:
                yield from _parse_lines(lines, str(file))
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"cannot read {file}: {error}") from error


def _parse_lines(lines: TextIO, source: str) -> Iterator[str | list[int]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield _parse_line(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{source}, line {number}: {error}") from error


def _parse_line(row: Any) -> str | list[int]:
    match row:
        case {"prompt": str(text)}:
            return text
        case {"prompt_token_ids": list(ids)} if all(type(item) is int for item in ids):
            return ids
    raise ValueError('expected {"prompt": text} or {"prompt_token_ids": [id, ...]}')


def _to_json(index: int, generation: "Generation", completion: "Completion") -> dict[str, Any]:
    row: dict[str, Any] = {
        "index": index,
        "completion": completion.index,
        "prompt": generation.prompt if generation.prompt is not None else generation.prompt_token_ids,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "num_prompt_tokens": len(generation.prompt_token_ids),
    }
    if completion.logprobs is not None:
        row["logprobs"] = [{"logprob": entry.logprob, "top": entry.top} for entry in completion.logprobs]
    if generation.prompt_logprobs is not None:
        row["prompt_logprobs"] = [{"logprob": entry.logprob, "top": entry.top} for entry in generation.prompt_logprobs]
    if completion.error is not None:
        row["error"] = completion.error
    return row
