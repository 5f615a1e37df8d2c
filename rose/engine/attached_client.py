"""A frontend beside the one that started the engine, in a process of its own."""

import asyncio
import time
from pathlib import Path

from rose.engine.base_client import BaseClient
from rose.engine.channel import FrontendEnd
from rose.engine.messages import Abort, EngineReady, Ping, ToEngine
from rose.log import get_logger

logger = get_logger(__name__)

_CLOSE_TIMEOUT_S = 5.0
_LINGER_MS = 1000
_POLL_S = 0.01


class AttachedEngineClient(BaseClient):
    """The `EngineClient` of an engine that another process starts, watches and ends.

    folder: `ProcessEngineClient.folder`. name: none that a frontend of this engine ever had. info: its owner's.
    """

    def __init__(self, folder: Path, name: str, info: EngineReady) -> None:
        super().__init__(id_prefix=f"{name}:")
        self._info = info
        self._channel = FrontendEnd(folder, name)
        self._post(Ping())  # the engine does not know of this frontend yet, and would tell it no stats
        self._reader = asyncio.get_running_loop().create_task(self._read(), name="engine-reader")

    def engine_ended(self, message: str) -> None:
        """The owner's news that the engine is gone: fail what is open."""
        self._die(message)

    async def close(self) -> None:
        """Abort open requests, see them end, and leave the engine running."""
        if self._channel.is_closed:
            return
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        for request_id in list(self._streams):
            self._send(Abort(request_id=request_id))
        while self._streams and self.is_alive and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
        self._die("the server is shutting down")
        self._reader.cancel()
        await asyncio.wait([self._reader])
        if not self._channel.is_closed:
            self._channel.close(_LINGER_MS)

    def _send(self, message: ToEngine) -> None:
        self._channel.send(message)

    async def _read(self) -> None:
        try:
            while True:
                self._receive(await self._channel.receive())
        except Exception as error:  # without a reader nobody would ever hear of the engine again
            logger.exception("cannot take in the engine's messages")
            self._die(f"the engine's messages cannot be read: {type(error).__name__}: {error}")
