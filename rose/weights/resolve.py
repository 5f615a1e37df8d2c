"""Finding the folder of a checkpoint. No torch here: the server's process needs the tokenizer of a checkpoint only."""

from importlib.resources import files
from pathlib import Path

from rose.errors import CheckpointError
from rose.models.gpt_oss.published import is_published

# Folders of the published repositories that hold the same weights once more, in other layouts.
_DUPLICATE_FOLDERS = ["original/*", "metal/*"]
_WANTED_FILES = ["*.safetensors", "*.json", "tokenizer*", "*.jinja"]


def resolve_checkpoint(name: str | Path) -> Path:
    """The local folder of a checkpoint.

    name: a bundled checkpoint (`rose-demo`), else a folder, else a repository of the Hugging Face Hub, as
    `owner/name`, which is downloaded into its cache or found there. Raises CheckpointError.
    """
    path = local_path(name)
    if is_bundled(str(name)):
        return _assets() / name
    if path.is_dir():
        return path
    if path.exists():
        raise CheckpointError(f"{path} is a file; a checkpoint is a folder with config.json and *.safetensors")
    if isinstance(name, str) and name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _download(name)
    if is_published(str(name)):
        raise CheckpointError(
            f"no checkpoint at {path}: the Hub's is openai/{name}; load_format dummy makes up weights"
        )
    raise CheckpointError(f"no checkpoint at {path}: not a folder, a bundled name or a Hub repository `owner/name`")


def is_bundled(name: str) -> bool:
    """Whether a name is of a checkpoint that comes with rose."""
    return any(folder.name == name and (folder / "config.json").is_file() for folder in _assets().iterdir())


def local_path(name: str | Path) -> Path:
    """Where a name is on this machine, if it is there. Raises CheckpointError for a path that cannot be looked at."""
    try:
        path = Path(name).expanduser()
        (path / "config.json").exists()
    except (OSError, RuntimeError) as error:  # a folder without permission, a name too long, the home of nobody
        raise CheckpointError(f"cannot look for a checkpoint at {name}: {error}") from error
    return path


def resolve_tokenizer(name: str | Path, load_format: str) -> Path:
    """The folder with a model's tokenizer: the checkpoint's own.

    Made-up weights of a published shape (`load_format` dummy) come without one, and speak with rose-demo's, whose ids
    are the first of theirs. Raises CheckpointError.
    """
    if load_format == "dummy" and is_published(str(name)):
        return resolve_checkpoint("rose-demo")
    return resolve_checkpoint(name)


def _assets() -> Path:
    return Path(str(files("rose"))) / "assets"


def _download(repository: str) -> Path:
    # Imported here: it is slow, and a local checkpoint does not need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(repository, allow_patterns=_WANTED_FILES, ignore_patterns=_DUPLICATE_FOLDERS)
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{repository} is not a local folder and cannot be had from the Hub: {reason}") from error
    return Path(folder)
