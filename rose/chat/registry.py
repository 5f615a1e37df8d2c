"""The chat formats by name. To add one, see docs/adding-a-chat-format.md."""

from collections.abc import Mapping
from pathlib import Path

import tokenizers

from rose.chat.chatml.format import ChatMLFormat
from rose.chat.format import ChatFormat, FormatType
from rose.chat.harmony.format import HarmonyFormat
from rose.chat.tokenizer import Tokenizer, as_tokenizer
from rose.errors import ConfigError

# `auto` takes the first that suits the checkpoint.
FORMATS: Mapping[str, FormatType] = {"harmony": HarmonyFormat, "chatml": ChatMLFormat}


def get_format(name: str, tokenizer: Tokenizer | tokenizers.Tokenizer | str | Path) -> ChatFormat:
    """The chat format called `name`, or with `auto` the one that suits, for a checkpoint's tokenizer or its path.

    Raises `ConfigError` for an unknown name, or if none suits, and `CheckpointError` for a tokenizer that lacks the
    format's tokens.
    """
    tokenizer = as_tokenizer(tokenizer)
    if name == "auto":
        name = _suiting(tokenizer)
    if name not in FORMATS:
        raise ConfigError(f"unknown chat format {name!r}; known: auto, {', '.join(sorted(FORMATS))}")
    return FORMATS[name](tokenizer)


def _suiting(tokenizer: Tokenizer) -> str:
    for name, kind in FORMATS.items():
        if kind.suits(tokenizer):
            return name
    raise ConfigError(
        f"{tokenizer.source}: no chat format suits its tokens, and there is no chat template; "
        f"--chat-format takes one of {', '.join(sorted(FORMATS))}"
    )
