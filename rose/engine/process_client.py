"""An engine in a process of its own. The frontend keeps its event loop free and never imports torch."""

import asyncio
import contextlib
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from rose.engine.base_client import BaseClient, OnProgress, load_error
from rose.engine.channel import OWNER, FrontendEnd
from rose.engine.config import EngineConfig
from rose.engine.messages import EngineDied, EngineReady, FromEngine, FrontendGone, LoadProgress, Shutdown, ToEngine
from rose.errors import EngineDead
from rose.log import get_logger

logger = get_logger(__name__)

_CLOSE_TIMEOUT_S = 5.0
_LAST_WORDS_TIMEOUT_S = 0.05


class ProcessEngineClient(BaseClient):
    """The `EngineClient` of a child process. Make one with `start`.

    folder: private to this process and its children, until `close`. An `AttachedEngineClient` finds the engine there.
    """

    def __init__(self, config: EngineConfig, on_progress: OnProgress | None = None) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        self._on_progress = on_progress
        self._ready: asyncio.Future[EngineReady] = loop.create_future()
        self._exited = asyncio.Event()
        self.folder = Path(tempfile.mkdtemp(prefix="rose-"))
        self._channel = FrontendEnd(self.folder, OWNER)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rose.engine.engine_process", str(self.folder), config.to_json()],
            stdin=subprocess.PIPE,  # its end tells the child that this process is gone
            stdout=2,  # standard output belongs to this process
            start_new_session=True,  # Ctrl-C is for this process, which then closes the engine in order
        )
        self._reader = loop.create_task(self._read(), name="engine-reader")
        threading.Thread(target=self._watch, args=(loop,), daemon=True, name="engine-watch").start()

    @classmethod
    async def start(cls, config: EngineConfig, on_progress: OnProgress | None = None) -> "ProcessEngineClient":
        """Start an engine and wait until it serves.

        on_progress is called as the weights load. Raises what the engine could not start for: `ConfigError` and
        `CheckpointError` as they were raised there, else `EngineDead`.
        """
        client = cls(config, on_progress)
        try:
            client._info = await client._ready
        except BaseException:
            client._process.kill()
            await client.close()
            raise
        return client

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    async def wait_for_end(self) -> str:
        """Wait until the engine is gone; return why."""
        await asyncio.wait([self._reader])  # which, unlike awaiting it, leaves it alone when this is cancelled
        return self._end or ""

    def forget_frontend(self, name: str) -> None:
        """The process of an `AttachedEngineClient` has ended: abort what it left open."""
        if self.is_alive:
            self._send(FrontendGone(name))

    async def close(self) -> None:
        """End the child and wait for it; open requests end with `abort`."""
        if not self._channel.is_closed:
            if self.is_alive:
                self._send(Shutdown())
            try:
                await asyncio.wait_for(self._exited.wait(), _CLOSE_TIMEOUT_S)
            except TimeoutError:
                logger.warning("the engine does not end when asked to; killing it")
            finally:  # also when this task is cancelled
                self._process.kill()
        await asyncio.wait([self._reader])
        self._die("the engine was closed")
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._channel.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _send(self, message: ToEngine) -> None:
        self._channel.send(message)

    async def _read(self) -> None:
        """Take in the engine's messages until its process is gone."""
        try:
            while True:
                self._receive(await self._channel.receive())
        except asyncio.CancelledError:  # by `_on_exit`
            self._die(f"the engine's process ended with status {self._process.returncode}")
        except Exception as error:  # without a reader nobody would ever hear of the engine again
            logger.exception("cannot take in the engine's messages; ending it")
            self._die(f"the engine's messages cannot be read: {type(error).__name__}: {error}")
            self._process.kill()

    def _receive(self, message: FromEngine) -> None:
        match message:
            case LoadProgress():
                if self._on_progress is not None:
                    self._on_progress(message)
            case EngineReady():
                if not self._ready.done():
                    self._ready.set_result(message)
            case EngineDied() if not self._ready.done():
                self._ready.set_exception(load_error(message))
            case _:
                super()._receive(message)

    def _die(self, message: str) -> None:
        super()._die(message)
        if not self._ready.done():
            self._ready.set_exception(EngineDead(f"the engine could not start: {message}"))

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread of its own: wait for the child's end, which also collects its status."""
        self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop may be closed, if nobody closed this client
            loop.call_soon_threadsafe(self._on_exit, loop)

    def _on_exit(self, loop: asyncio.AbstractEventLoop) -> None:
        self._exited.set()
        loop.call_later(_LAST_WORDS_TIMEOUT_S, self._reader.cancel)  # what it sent before its end is still under way
