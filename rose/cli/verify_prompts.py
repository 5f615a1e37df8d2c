"""The prompts of `rose verify`: chats that come with rose, or those of a file, as token ids."""

import json
import random
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rose.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from rose.chat.format import ChatFormat
    from rose.chat.tokenizer import Tokenizer

# For a checkpoint without a chat format.
_TEXTS = (
    "The capital of France is",
    "What is 17 plus 25? Think step by step, then give the number alone.",
    "Write a list of five animals, one on each line, in alphabetical order.",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Der Zug nach Hamburg fährt um 14:05 Uhr von Gleis 7 ab. Wann und wo fährt der Zug ab?",
)
_NUM_RANDOM_PROMPTS, _RANDOM_PROMPT_TOKENS = 5, 24
_CHAT_FIELDS = {"messages", "tools", "reasoning_effort"}
_EXPECTED = (
    'expected {"messages": […]}, with "tools" and "reasoning_effort" as in /v1/chat/completions, {"prompt": text} or '
    '{"prompt_token_ids": [id, …]}'
)


class Prompts:
    """Makes token ids of prompts for one checkpoint. stop_ids: what ends an answer in its chat format."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        """folder: of the checkpoint, with or without a tokenizer. Raises CheckpointError."""
        self._vocab_size = vocab_size
        self._tokenizer = _find_tokenizer(folder)
        self._format = None if self._tokenizer is None else _find_format(self._tokenizer)
        self.stop_ids: tuple[int, ...] = () if self._format is None else self._format.stop_token_ids

    def built_in(self) -> list[list[int]]:
        """The chats that come with rose; plain texts without a chat format; random tokens without a tokenizer."""
        if self._format is not None:
            chats = files("rose").joinpath("assets", "verify", "chats.jsonl").read_text(encoding="utf-8")
            return [self._checked(self._chat(json.loads(line))) for line in chats.splitlines()]
        if self._tokenizer is not None:
            return [self._checked(self._tokenizer.encode(text)) for text in _TEXTS]
        generator = random.Random(0)
        return [
            [generator.randrange(self._vocab_size) for _ in range(_RANDOM_PROMPT_TOKENS)]
            for _ in range(_NUM_RANDOM_PROMPTS)
        ]

    def of_file(self, path: Path) -> list[list[int]]:
        """The prompts of a file of JSON lines. Raises ConfigError, with the line, for what is no prompt."""
        return list(self._lines(path))

    def _lines(self, path: Path) -> Iterator[list[int]]:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {path}: {error}") from error
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield self._checked(self._row(json.loads(line)))
                except (ValueError, RecursionError, RequestError) as error:
                    raise ConfigError(f"{path}, line {number}: {error}") from error

    def _row(self, row: Any) -> list[int]:
        match row:
            case {"messages": list()} if set(row) <= _CHAT_FIELDS:
                return self._chat(row)
            case {"prompt": str(text)} if len(row) == 1:
                if self._tokenizer is None:
                    raise ValueError("the checkpoint has no tokenizer for a text")
                return self._tokenizer.encode(text)
            case {"prompt_token_ids": list(ids)} if len(row) == 1 and all(type(item) is int for item in ids):
                return ids
        raise ValueError(_EXPECTED)

    def _chat(self, row: dict[str, Any]) -> list[int]:
        # As the server reads it. Without a date, so that the same chat is the same prompt tomorrow.
        from rose.server.chat_completions.convert import to_conversation
        from rose.server.chat_completions.schema import ChatCompletionRequest
        from rose.server.errors import parse_body

        if self._format is None:
            raise ValueError("the checkpoint has no chat format for messages")
        body = parse_body(ChatCompletionRequest, json.dumps(row).encode())
        return self._format.render(to_conversation(body, current_date=None))

    def _checked(self, ids: list[int]) -> list[int]:
        if not ids or min(ids) < 0 or max(ids) >= self._vocab_size:
            raise ValueError(f"a prompt needs tokens, with ids from 0 to {self._vocab_size - 1}")
        return ids


def _find_tokenizer(folder: Path) -> "Tokenizer | None":
    from rose.chat.tokenizer import load_tokenizer

    return load_tokenizer(folder) if (folder / "tokenizer.json").is_file() else None


def _find_format(tokenizer: "Tokenizer") -> "ChatFormat | None":
    from rose.chat.registry import get_format

    try:
        return get_format("auto", tokenizer)
    except ConfigError:  # none suits
        return None
