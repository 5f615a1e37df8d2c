"""The chat formats by name. To add one, see docs/adding-a-chat-format.md."""

from pathlib import Path

import tokenizers

from rose.chat.format import ChatFormat
from rose.chat.harmony.format import HarmonyFormat
from rose.chat.tokenizer import Tokenizer, as_tokenizer
from rose.errors import ConfigError

FORMATS = {"harmony": HarmonyFormat}


def get_format(name: str, tokenizer: Tokenizer | tokenizers.Tokenizer | str | Path) -> ChatFormat:
    """The chat format called `name` for a checkpoint's tokenizer, which may also be given by its path.

    Raises `ConfigError` for an unknown name and `CheckpointError` for a tokenizer that lacks the format's tokens.
    """
    if name not in FORMATS:
        raise ConfigError(f"unknown chat format {name!r}; known: {', '.join(sorted(FORMATS))}")
    return FORMATS[name](as_tokenizer(tokenizer))
