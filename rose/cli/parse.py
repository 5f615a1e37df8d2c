"""`rose parse`: read sampled tokens as the server would, and print the answer as JSON."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from rose.cli.streams import json_line
from rose.errors import ConfigError

if TYPE_CHECKING:
    from rose.chat.format import ChatFormat
    from rose.chat.tokenizer import Tokenizer

_FILE = Parameter(allow_leading_hyphen=True)  # for `-`


def parse(
    *,
    model: str,
    tokens: Annotated[str | None, _FILE] = None,
    text: Annotated[str | None, _FILE] = None,
    jsonl: Annotated[str | None, _FILE] = None,
    finish: Literal["stop", "length", "abort", "error"] = "stop",
    chat_format: str = "auto",
) -> None:
    """Parse what a model sampled after the prompt (for Harmony: after `<|start|>assistant`).

    Exactly one of --tokens, --text and --jsonl is read; `-` is standard input. One JSON object is printed, or one a
    line for --jsonl, whose lines may hold their own "finish".

    Parameters
    ----------
    model
        A checkpoint, or only its tokenizer: a folder with a tokenizer.json, or that file.
    tokens
        File of token ids: a JSON list, or numbers separated by blanks.
    text
        File of text in which control tokens are written as `<|...|>`. A line feed at its end counts.
    jsonl
        File with a JSON object a line: {"tokens": [...]} or {"text": "..."}.
    finish
        Why the engine stopped.
    chat_format
        How the model writes chats, by name; auto goes by the files beside the tokenizer.
    """
    from rose.chat.registry import get_format
    from rose.chat.tokenizer import load_tokenizer

    sources = [source for source in (tokens, text, jsonl) if source is not None]
    if len(sources) != 1:
        raise ConfigError("give exactly one of --tokens, --text and --jsonl")
    tokenizer = load_tokenizer(_tokenizer_path(model))
    chat = get_format(chat_format, tokenizer)
    if jsonl is not None:
        for where, sample in _samples(jsonl):
            reason = finish if sample.get("finish") is None else _checked_reason(sample["finish"], where)
            print(_answer(chat, _sample_ids(sample, tokenizer, where), reason))
    elif tokens is not None:
        print(_answer(chat, _token_ids(_read(tokens), tokens), finish))
    else:
        print(_answer(chat, tokenizer.encode_with_special(_read(sources[0])), finish))


def _tokenizer_path(model: str) -> Path:
    if Path(model).is_file():
        return Path(model)
    from rose.weights.resolve import resolve_checkpoint

    return Path(resolve_checkpoint(model))


def _answer(chat: "ChatFormat", ids: list[int], reason: str) -> str:
    from rose.chat.merge import merge

    parser = chat.parser()
    events = [event for token_id in ids for event in parser.push(token_id)]
    return json_line(asdict(merge(events + parser.finish(reason))))


def _read(source: str) -> str:
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        return data.decode()
    except OSError as error:
        raise ConfigError(f"{source}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{source}: not UTF-8 text") from None


def _token_ids(text: str, source: str) -> list[int]:
    try:
        ids = json.loads(text) if text.lstrip().startswith("[") else [int(word) for word in text.split()]
    except (ValueError, RecursionError):
        raise ConfigError(f"{source}: neither a JSON list nor token ids separated by blanks") from None
    return _checked_ids(ids, source)


def _samples(source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSON-lines file, each with where it stands."""
    for number, line in enumerate(_read(source).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{source}, line {number}"
        try:
            sample = json.loads(line)
        except (ValueError, RecursionError):
            raise ConfigError(f"{where}: not JSON") from None
        if not isinstance(sample, dict):
            raise ConfigError(f"{where}: not a JSON object")
        yield where, sample


def _sample_ids(sample: dict[str, Any], tokenizer: "Tokenizer", where: str) -> list[int]:
    if sample.get("tokens") is not None:
        return _checked_ids(sample["tokens"], where)
    if isinstance(sample.get("text"), str):
        return tokenizer.encode_with_special(sample["text"])
    raise ConfigError(f'{where}: neither "tokens" nor "text"')


def _checked_ids(ids: object, where: str) -> list[int]:
    if isinstance(ids, list) and all(type(token_id) is int for token_id in ids):
        return ids
    raise ConfigError(f"{where}: token ids must be a list of integers")


def _checked_reason(reason: object, where: str) -> str:
    if isinstance(reason, str) and reason in ("stop", "length", "abort", "error"):
        return reason
    raise ConfigError(f'{where}: "finish" must be one of stop, length, abort, error')
