"""Several API servers, each in a process of its own, in front of one engine at one address.

A server that ends by itself is replaced; its open requests are aborted in the engine, and the others never notice.
The sockets stay open here meanwhile, so that who connects then waits instead of being refused.
"""

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from pathlib import Path
from socket import socket

import msgspec

from rose import errors
from rose.engine.process_client import ProcessEngineClient
from rose.errors import ConfigError, RoseError
from rose.log import get_logger
from rose.server.api_process import ApiServerConfig, EngineEnded, Started, StartFailed
from rose.server.settings import ServerSettings

logger = get_logger(__name__)

_MAX_FAILED_STARTS = 3
_RESTART_DELAY_S = 0.5
_KILL_AFTER_S = 15.0


class Fleet:
    """The API servers of an engine, one for each of the `listeners`, bound sockets that may be the same one.

    grace_s: seconds that open requests have left after `stop`. on_started: called once, when all of them listen.
    """

    def __init__(
        self,
        engine: ProcessEngineClient,
        tokenizer_folder: Path,
        settings: ServerSettings,
        listeners: Sequence[socket],
        *,
        grace_s: float,
        on_started: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._tokenizer_folder = tokenizer_folder
        self._settings = settings
        self._listeners = listeners
        self._grace_s = grace_s
        self._on_started = on_started
        self._processes: dict[int, Process] = {}
        self._started: set[int] = set()
        self._engine_end: EngineEnded | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Serve until `stop`. Raises what a server cannot start for, when all of them have ended."""
        news = asyncio.create_task(self._tell_of_engines_end())
        servers = [asyncio.create_task(self._keep_alive(number)) for number in range(len(self._listeners))]
        try:
            done, _ = await asyncio.wait(servers, return_when=asyncio.FIRST_EXCEPTION)
            for server in done:
                server.result()
        finally:
            news.cancel()
            if not self._stopping.is_set():
                self.stop()
            await asyncio.gather(*servers, return_exceptions=True)  # the first fault is raised above

    def stop(self) -> None:
        """Take no more connections, and end the servers in order. A second call lets them wait for nothing."""
        if not self._stopping.is_set():
            self._stopping.set()
            for listener in self._listeners:  # else connections would queue at sockets that nobody serves any more
                listener.close()
            asyncio.get_running_loop().call_later(self._grace_s + _KILL_AFTER_S, self._kill)
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    async def _keep_alive(self, number: int) -> None:
        """Have a server at a socket until `stop`."""
        num_failed = 0
        for generation in range(sys.maxsize):
            name = f"server-{number}" + (f".{generation}" if generation else "")
            if self._stopping.is_set():
                return
            has_started = await self._run_one(number, name)
            self._engine.forget_frontend(name)
            if self._stopping.is_set():
                return
            num_failed = 0 if has_started else num_failed + 1
            if num_failed == _MAX_FAILED_STARTS:
                raise ConfigError(f"an API server ended {num_failed} times before it could serve; its log says why")
            await asyncio.sleep(num_failed * _RESTART_DELAY_S)

    async def _run_one(self, number: int, name: str) -> bool:
        """Run one server to its end; returns whether it ever served. Raises what it says it cannot start for."""
        listener = self._listeners[number].fileno()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rose.server.api_process"),
            stdin=PIPE,  # its end tells the child that this process is gone
            stdout=PIPE,
            pass_fds=(listener,),
            start_new_session=True,  # Ctrl-C is for this process, which then ends its children in order
            env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": self._settings.shared_folder or ""},
        )
        self._processes[number] = process
        if self._stopping.is_set():
            process.terminate()
        config = ApiServerConfig(
            name=name,
            engine_folder=str(self._engine.folder),
            engine_info=self._engine.info,
            tokenizer_folder=str(self._tokenizer_folder),
            settings=self._settings,
            listener=listener,
            grace_s=self._grace_s,
        )
        self._say(process, config)
        if self._engine_end is not None:
            self._say(process, self._engine_end)
        assert process.stdout is not None
        answer = await process.stdout.readline()
        told = msgspec.json.decode(answer, type=Started | StartFailed) if answer else None
        if isinstance(told, Started):
            self._count_started(number)
        status = await process.wait()
        del self._processes[number]
        if isinstance(told, StartFailed):
            kind = getattr(errors, told.error_type, None)
            raise (kind if isinstance(kind, type) and issubclass(kind, RoseError) else RoseError)(told.message)
        if not self._stopping.is_set():
            logger.error("the API server %s (pid %d) ended with status %d; starting another", name, process.pid, status)
        return told is not None

    def _count_started(self, number: int) -> None:
        if number not in self._started:
            self._started.add(number)
            if len(self._started) == len(self._listeners):
                self._on_started()

    async def _tell_of_engines_end(self) -> None:
        self._engine_end = EngineEnded(await self._engine.wait_for_end())
        logger.error("the engine is gone, and no request can be served: %s", self._engine_end.message)
        for process in self._processes.values():
            self._say(process, self._engine_end)

    def _say(self, process: Process, message: ApiServerConfig | EngineEnded) -> None:
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError, RuntimeError):  # it is gone; `_run_one` notices
            process.stdin.write(msgspec.json.encode(message) + b"\n")

    def _kill(self) -> None:
        for process in self._processes.values():
            logger.warning("an API server (pid %d) does not end when asked to; killing it", process.pid)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
