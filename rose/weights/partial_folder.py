"""The folder in which a checkpoint is made: locked, without a config.json until the end, and then renamed."""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rose.errors import ConfigError
from rose.weights.durable import sync_folder, write_durably
from rose.weights.journal import JOURNAL_NAME
from rose.weights.manifest import MANIFEST_NAME
from rose.weights.shard_writer import ShardPlan, write_index

_LOCK_NAME = "lock"
# Beside the weights, what belongs to a checkpoint and is copied as it is.
_OTHER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "generation_config.json",
    "*.jinja",
    "LICENSE*",
    "USAGE_POLICY*",
)


@contextlib.contextmanager
def partial_folder(folder: Path) -> Iterator[Path]:
    """`<folder>.partial`, which no other conversion has while the block runs; if nothing came of it, it is removed.

    Raises ConfigError if `folder` exists, if another conversion is at it, or where the block raises OSError.
    """
    _check_absent(folder)
    partial = folder.with_name(f"{folder.name}.partial")
    with _locked(partial), _told_as_config_error(partial):
        _check_absent(folder)  # once more: another conversion may have finished before this one had the lock
        yield partial


def check_space(partial: Path, shards: ShardPlan) -> None:
    """Raise ConfigError unless the disk has room for what of the shards is not there yet."""
    needed = sum(shards.sizes.values())
    # Files of an earlier attempt have their length, but perhaps not yet their blocks.
    taken = sum(file.stat().st_blocks * 512 for file in partial.glob("*.safetensors"))
    free = shutil.disk_usage(partial).free
    if needed - taken > free:
        raise ConfigError(f"{partial} needs {(needed - taken) / 1e6:,.1f} MB, its disk has {free / 1e6:,.1f} MB free")


def finish(
    partial: Path,
    folder: Path,
    config: Mapping[str, Any],
    shards: ShardPlan,
    manifest: Mapping[str, Any],
    other_files: Path | None,
) -> None:
    """Write what makes a folder of tensors a checkpoint, and give it its name.

    config: for config.json. other_files: a folder whose tokenizer and the like are copied.
    """
    for pattern in _OTHER_FILES if other_files is not None else ():
        assert other_files is not None
        for file in sorted(other_files.glob(pattern)):
            if file.is_file():
                shutil.copyfile(file, partial / file.name)
    write_index(partial, shards)
    write_durably(partial / MANIFEST_NAME, json.dumps(manifest, indent=2) + "\n")
    write_durably(partial / "config.json", json.dumps(config, indent=2) + "\n")
    sync_folder(partial)
    partial.rename(folder)
    sync_folder(folder.parent)
    # Not before: interrupted between the two, the conversion would begin anew in a folder that has a config.json.
    (folder / JOURNAL_NAME).unlink()
    (folder / _LOCK_NAME).unlink()


def _check_absent(folder: Path) -> None:
    if os.path.lexists(folder):  # a link to nowhere as well
        raise ConfigError(f"{folder} exists already; remove it, or choose another folder")


@contextlib.contextmanager
def _told_as_config_error(partial: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {partial}: {error}") from error


@contextlib.contextmanager
def _locked(partial: Path) -> Iterator[None]:
    """Make the folder and keep other conversions out of it; if nothing came of it, remove it."""
    with _told_as_config_error(partial):
        partial.mkdir(parents=True, exist_ok=True)
        names = {file.name for file in partial.iterdir()}
        if names and not names & {_LOCK_NAME, JOURNAL_NAME}:
            raise ConfigError(f"{partial} is no unfinished conversion; remove it, or choose another folder")
        descriptor = os.open(partial / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink == 0:  # whoever held it has just finished and removed it
                raise BlockingIOError
        except BlockingIOError:
            raise ConfigError(f"another conversion is writing {partial}") from None
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                if [file.name for file in partial.iterdir()] == [_LOCK_NAME]:
                    (partial / _LOCK_NAME).unlink()
                    partial.rmdir()
    finally:
        os.close(descriptor)
