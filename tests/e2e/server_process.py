"""`rose serve` as users run it: a process with an engine process of its own."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.chat.tokenizers_for_tests import tiny_tokenizer
from tests.checkpoints import TinyShape, write_checkpoint

START_TIMEOUT_S = 60.0
VOCAB_SIZE = 512


class ServerProcess:
    """A running server. `url` is known once it serves; leaving the block ends it."""

    def __init__(self, model: str, *flags: str, env: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rose.cli.main", "serve", model, "--port", "0", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | (env or {}),
        )
        self.url = ""
        self.log: list[str] = []

    def __enter__(self) -> "ServerProcess":
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._reader = threading.Thread(target=self.log.extend, args=(self._process.stderr,))
        self._reader.start()
        watchdog = threading.Timer(START_TIMEOUT_S, self._process.kill)
        watchdog.start()
        ready = self._process.stdout.readline()
        watchdog.cancel()
        found = re.search(r"http://\S+(?=/v1)", ready)
        if found is None:
            self._end()
            raise AssertionError(f"the server did not start: {ready}{''.join(self.log)}")
        self.url = found[0]
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.signal(signal.SIGTERM)
        self._end()

    def signal(self, number: int) -> None:
        """Send the server a signal."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Its exit status, when it has ended."""
        return self._process.wait(20)

    def engine_pids(self) -> list[int]:
        """Its child processes."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def _end(self) -> None:
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        finally:
            self._reader.join(5)
            for pipe in (self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()


def tiny_checkpoint(folder: Path) -> Path:
    """A random model with a tokenizer: it says nothing sensible, and says it at once."""
    write_checkpoint(folder, TinyShape(vocab_size=VOCAB_SIZE, original_context=512))
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return folder
