"""A server's Unix socket, and the path where clients find it."""

import contextlib
import errno
import hashlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from rose.errors import ConfigError


@contextlib.contextmanager
def bound_to_path(path: Path) -> Iterator[socket.socket]:
    """A socket bound to the path and not yet listening, for as long as the block runs; then the path is free again.

    A socket that nobody listens at, as a killed server leaves behind, is taken over. While its model is loaded a server
    does not listen yet either, so what says that it is there is a second socket, whose name is no file's and goes with
    its process. Raises `ConfigError` if the path cannot be had.
    """
    with contextlib.ExitStack() as opened:
        try:
            claim, listener = (opened.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
            claim.bind(_claim_name(path))
            if path.exists():
                if not stat.S_ISSOCK(path.stat().st_mode):
                    raise ConfigError(f"cannot listen on {path}: there is something else than a socket")
                if _is_abandoned(path):
                    path.unlink()
            listener.bind(str(path))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(f"{path} is in use by another program; choose another with --uds") from None
            raise ConfigError(f"cannot listen on {path}: {error.strerror or error}") from None
        opened.callback(path.unlink, missing_ok=True)
        yield listener


def _claim_name(path: Path) -> bytes:
    """The same for whoever means the same path, among Linux's abstract names, which a network namespace shares."""
    folder = path.parent.stat()
    place = b"%d/%d/%s" % (folder.st_dev, folder.st_ino, os.fsencode(path.name))
    return b"\0rose-" + hashlib.sha256(place).hexdigest().encode()


def _is_abandoned(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # one that is too busy to answer is none
        return probe.connect_ex(str(path)) == errno.ECONNREFUSED
