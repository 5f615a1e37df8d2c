"""The sockets to listen on, and the web server that runs the application on it."""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rose.errors import ConfigError

# Longer than clients keep idle connections in their pools, so that it is they who close them: a request sent into a
# connection that the server just closed is lost.
_KEEP_ALIVE_S = 75
_MAX_HEAD_BYTES = 256 << 10


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address and not yet listening: an address in use is known before a model is loaded.

    Raises `ConfigError` if the address cannot be had.
    """
    if not 0 <= port <= 65535:  # the system would take another one, modulo 65536
        raise ConfigError(f"--port must be from 0 to 65535, not {port}")
    try:
        return _bind_address(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"{host}:{port} is in use by another program; choose another with --port") from None
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def bind_several(count: int, host: str, port: int) -> list[socket.socket]:
    """Sockets at one address for as many processes; the system spreads connections over them.

    Raises `ConfigError` if the address cannot be had.
    """
    first = bind(host, port)  # alone at the address: sockets that share it would not notice another program's
    if count == 1:
        return [first]
    with first:
        port = first.getsockname()[1]
    with contextlib.ExitStack() as opened:
        try:
            listeners = [opened.enter_context(_bind_address(host, port, is_shared=True)) for _ in range(count)]
        except OSError as error:
            raise ConfigError(f"cannot share {host}:{port} between processes: {error.strerror or error}") from None
        opened.pop_all()
    return listeners


def address_of(listener: socket.socket) -> str:
    """Where clients reach the socket: a URL, or a path for a Unix socket."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    host, port = name[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{host}:{port}"


class HttpServer(uvicorn.Server):
    """Serves an app on a bound socket until a signal, then lets open requests end and calls `on_stopping`.

    on_stopping: called `grace_s` after a signal, or earlier if no request is open any more. It must make whatever
    requests are left end. A second signal waits for nothing.
    """

    def __init__(
        self,
        app: FastAPI,
        *,
        on_started: Callable[[], None],
        on_stopping: Callable[[], Awaitable[None]],
        grace_s: float,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=_HttpProtocol,
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=round(grace_s + 10),
            )
        )
        self._on_started = on_started
        self._on_stopping = on_stopping
        self._grace_s = grace_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen. Raises `ConfigError` if another program did so at the same address since it was bound."""
        for listener in sockets or ():
            try:
                listener.listen(self.config.backlog)
            except OSError as error:  # uvloop would close the socket and say nothing
                raise ConfigError(f"cannot listen on {address_of(listener)}: {error.strerror or error}") from None
        await super().startup(sockets=sockets)
        if self.started:
            self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, and come to an end with the open ones."""
        ending = asyncio.create_task(self._end_open_requests())
        try:
            await super().shutdown(sockets=sockets)
        finally:
            ending.cancel()
            await asyncio.wait({ending})
            await self._on_stopping()

    async def _end_open_requests(self) -> None:
        await asyncio.sleep(self._grace_s)
        await self._on_stopping()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """React to SIGINT or SIGTERM. Unlike the method it replaces it does not raise the signal again at the end."""
        self.force_exit = self.should_exit
        self.should_exit = True


class _HttpProtocol(HttpToolsProtocol):
    """uvicorn's, which waits for ever for the head of a request, and takes one of any length.

    Here it waits no longer than for the next request, and takes `_MAX_HEAD_BYTES` and what came with the last of them.
    """

    _head_timer: asyncio.TimerHandle | None = None
    _num_head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection begins."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Some bytes came."""
        super().data_received(data)
        if self._head_timer is None:
            return
        self._num_head_bytes += len(data)
        if self._num_head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head of a request may have {_MAX_HEAD_BYTES} bytes.")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header came; behind a body nobody reads it."""
        if self._head_timer is not None:
            super().on_header(name, value)

    def on_message_begin(self) -> None:
        """The first byte of a request came."""
        super().on_message_begin()
        if self._head_timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """The whole head came."""
        self._await_nothing()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._await_nothing()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _await_nothing(self) -> None:
        self._num_head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def log_through(handlers: list[logging.Handler]) -> None:
    """Send the web server's warnings and errors to these handlers."""
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers[:] = handlers if name in ("uvicorn", "asyncio") else []
        logger.setLevel(logging.WARNING)
        logger.propagate = name not in ("uvicorn", "asyncio")


def _bind_address(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # Without this a port stays taken for a minute after a server ends. A living listener still holds it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener
