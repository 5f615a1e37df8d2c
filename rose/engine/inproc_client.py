"""An engine in a background thread of this process: for tests and small tools. A busy engine slows the event loop."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Iterable

from rose.engine.base_client import BaseClient, OnProgress
from rose.engine.config import EngineConfig
from rose.engine.core import EngineCore, run_core
from rose.engine.messages import FromEngine, LoadProgress, Shutdown, ToEngine


class InprocEngineClient(BaseClient):
    """The `EngineClient` of a core in this process."""

    def __init__(self, core: EngineCore) -> None:
        super().__init__()
        self._info = core.info
        self._inbox: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=run_core, args=(core, self._take, self._deliver), daemon=True, name="engine"
        )
        self._thread.start()

    @classmethod
    async def start(cls, config: EngineConfig, on_progress: OnProgress | None = None) -> "InprocEngineClient":
        """Load the model and start. Raises what loading raises."""
        from rose.engine.worker.worker import build_core  # imports torch

        loop = asyncio.get_running_loop()

        def progress(done: int, total: int) -> None:
            if on_progress is not None:
                loop.call_soon_threadsafe(on_progress, LoadProgress(done_bytes=done, total_bytes=total))

        return cls(await asyncio.to_thread(build_core, config, progress))

    async def close(self) -> None:
        """End the engine's thread; open requests end with `abort`."""
        self._send(Shutdown())
        await asyncio.to_thread(self._thread.join)
        await asyncio.sleep(0)  # its last outputs are in the loop's queue
        self._die("the engine was closed")

    def _send(self, message: ToEngine) -> None:
        self._inbox.put(message)

    def _take(self, wait: bool) -> Iterable[ToEngine]:
        messages = [self._inbox.get()] if wait else []
        while not self._inbox.empty():
            messages.append(self._inbox.get())
        return messages

    def _deliver(self, message: FromEngine) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be closed, if nobody closed this client
            self._loop.call_soon_threadsafe(self._receive, message)
