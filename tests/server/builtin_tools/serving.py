"""A server of tools to test against, and the sandboxes that are running."""

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mcp_server() -> Iterator[str]:
    """Start `mcp_server.py`; its address. It is ended with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = Path(__file__).with_name("mcp_server.py")
    process = subprocess.Popen([sys.executable, str(script), str(port)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, "the server of tools ended"
            assert time.monotonic() < deadline, "the server of tools does not listen"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(10)


class Sandboxes:
    """What there is of the sandboxes of one test, which are made in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def processes(self) -> list[str]:
        """Command lines of the processes that are in a sandbox's folder."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if str(self._folder) in str((process / "cwd").readlink()):
                    found.append((process / "cmdline").read_text())
            except OSError:
                continue
        return found

    def are_gone(self) -> bool:
        """Whether neither a process nor a file is left."""
        return not self.processes() and not list(self._folder.glob("rose-sandbox-*"))


@pytest.fixture
def sandboxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sandboxes:
    """Have sandboxes made in the test's own folder: other tests run on this machine, too."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return Sandboxes(tmp_path)
