"""The store that `--response-store` names."""

from pathlib import Path

from rose.errors import ConfigError
from rose.server.responses.memory_store import MAX_BYTES_IN_MEMORY, MAX_IN_MEMORY, MemoryStore, NoStore
from rose.server.responses.sqlite_store import SqliteStore
from rose.server.responses.store import ResponseStore


def open_store(spec: str, shared_folder: str | None = None) -> ResponseStore:
    """The store for `memory`, `none`, or `sqlite:PATH`. Raises `ConfigError` for anything else, or a bad file.

    shared_folder: of several processes that answer as one, whose `memory` is a file in it.
    """
    kind, _, path = spec.partition(":")
    match kind, path:
        case "memory", "" if shared_folder is not None:
            return SqliteStore(Path(shared_folder) / "responses.sqlite", MAX_IN_MEMORY, MAX_BYTES_IN_MEMORY)
        case "memory", "":
            return MemoryStore()
        case "none", "":
            return NoStore()
        case "sqlite", path if path:
            return SqliteStore(Path(path).expanduser())
    raise ConfigError(f"--response-store must be memory, none or sqlite:PATH, not {spec!r}")
