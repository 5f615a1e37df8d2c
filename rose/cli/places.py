"""Where a command computes, and where it writes."""

from pathlib import Path
from typing import Literal

from rose.errors import ConfigError


def choose_device(name: Literal["auto", "cpu", "cuda"]) -> Literal["cpu", "cuda"]:
    """The GPU for `auto`, if there is one. Raises ConfigError if there is none and it was asked for."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"--device cuda: torch {torch.__version__} finds no GPU here; use cpu")
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


def expand_home(path: Path) -> Path:
    """The path with `~` resolved. Raises ConfigError if it is the home of nobody."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path}: {error}") from error
