"""A server's Unix socket, and the path where clients find it."""

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from rose.errors import ConfigError


@contextlib.contextmanager
def bound_to_path(path: Path) -> Iterator[socket.socket]:
    """A socket bound to the path and not yet listening, for as long as the block runs; then the path is free again.

    A file left behind by a server that was killed is taken over. Nobody can ask a socket that does not listen yet
    whether it is in use, as the model is being loaded for one, so a file `PATH.lock` tells: it is locked until the end.
    Raises `ConfigError` if the path cannot be had.
    """
    with contextlib.ExitStack() as opened:
        try:
            opened.enter_context(_lock(path.with_name(f"{path.name}.lock")))
            listener = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and not _answers(path):
                path.unlink()
            listener.bind(str(path))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EWOULDBLOCK):
                raise ConfigError(f"{path} is in use by another program; choose another with --uds") from None
            raise ConfigError(f"cannot listen on {path}: {error.strerror or error}") from None
        opened.callback(path.unlink, missing_ok=True)
        yield listener


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file, made for it and removed after. Raises `OSError`, EWOULDBLOCK if another process does."""
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        with contextlib.closing(os.fdopen(descriptor)):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(descriptor, path):
                continue  # its owner removed it just before this process had the lock
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0
