"""Where a command computes, what folders it reads and makes, and which server it calls."""

from pathlib import Path
from typing import Literal

from rose.errors import CheckpointError, ConfigError


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


def new_checkpoint(path: Path) -> Path:
    """`expand_home` for a folder to be made. Raises ConfigError for a bundled name, which means another."""
    from rose.weights.resolve import is_bundled

    if is_bundled(str(path)):
        raise ConfigError(f"{path} is the name of a bundled model, which commands take before a folder; choose another")
    return expand_home(path)


def require_tokenizer(folder: Path) -> None:
    """Raise CheckpointError if a checkpoint's folder has no tokenizer.json, or one without its content."""
    from rose.weights.missing_content import missing_content

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise CheckpointError(
            f"{folder} has no tokenizer.json, and cannot be served without: copy the model's into it "
            "(`rose synth --tokenizer rose-demo` does so for made-up weights)"
        )
    try:
        fault = missing_content(file)
    except OSError as error:
        fault = str(error)
    if fault is not None:
        raise CheckpointError(f"{file}: {fault}")


def api_url(base_url: str) -> str:
    """The address of a server's API: without a path, as servers print theirs, it is under /v1. Without a last slash.

    Raises ConfigError for what is no address.
    """
    import httpx

    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"--base-url {base_url}: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"--base-url must be an address such as http://127.0.0.1:8000, not {base_url!r}")
    return base_url.rstrip("/") + ("" if url.path.strip("/") else "/v1")
