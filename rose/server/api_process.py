"""One of several API servers: `python -m rose.server.api_process`, started and told what to do by `rose.server.fleet`.

Its standard input brings an `ApiServerConfig`, later perhaps a `EngineEnded`, each a line of JSON; its end is the end
of the process that started it. On standard output stands one line, `Started` or `StartFailed`.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from rose.chat.registry import get_format
from rose.chat.tokenizer import load_tokenizer
from rose.engine.attached_client import AttachedEngineClient
from rose.engine.messages import EngineReady
from rose.errors import RoseError
from rose.log import setup_logging
from rose.server.app import create_app
from rose.server.http import HttpServer, log_through
from rose.server.settings import ServerSettings


class ApiServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an API server needs to know.

    name: its name as a frontend of the engine. engine_folder: where the engine is found. tokenizer_folder: the
    checkpoint. listener: the file descriptor of the socket that it inherited. grace_s: as of `HttpServer`.
    """

    name: str
    engine_folder: str
    engine_info: EngineReady
    tokenizer_folder: str
    settings: ServerSettings
    listener: int
    grace_s: float


class EngineEnded(msgspec.Struct, frozen=True):
    """The engine is gone."""

    message: str


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The server listens."""


class StartFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The server cannot start, by the user's mistake: the name of an exception in `rose.errors`, and its text."""

    error_type: str
    message: str


def main() -> None:
    """Serve until SIGTERM, or until the process that started this one is gone."""
    told = _lines_of_stdin()
    config = msgspec.json.decode(next(told), type=ApiServerConfig)
    setup_logging(config.name)
    log_through(logging.getLogger("rose").handlers)
    from uvicorn.loops.auto import auto_loop_factory

    try:
        with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
            runner.run(_serve(config, told))
    except RoseError as error:
        _answer(StartFailed(type(error).__name__, str(error)))
        sys.exit(2)


async def _serve(config: ApiServerConfig, told: Iterator[bytes]) -> None:
    engine = AttachedEngineClient(Path(config.engine_folder), config.name, config.engine_info)
    try:
        tokenizer = load_tokenizer(Path(config.tokenizer_folder))
        app = create_app(engine, get_format(config.settings.chat_format, tokenizer), tokenizer, config.settings)
        server = HttpServer(
            app, on_started=lambda: _answer(Started()), on_stopping=engine.close, grace_s=config.grace_s
        )

        def stop() -> None:
            engine.engine_ended("the server's main process is gone")
            server.handle_exit(signal.SIGTERM, None)

        loop = asyncio.get_running_loop()
        threading.Thread(target=_listen, args=(told, loop, engine.engine_ended, stop), daemon=True).start()
        with socket.socket(fileno=config.listener) as listener:
            await server.serve(sockets=[listener])
    finally:
        await engine.close()


def _lines_of_stdin() -> Iterator[bytes]:
    """What the starting process says, until it is gone. Unbuffered: a thread that waits here can be left behind."""
    rest = b""
    while data := os.read(0, 1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


def _listen(
    told: Iterator[bytes],
    loop: asyncio.AbstractEventLoop,
    engine_ended: Callable[[str], None],
    stop: Callable[[], None],
) -> None:
    """In a thread of its own: pass on what the starting process says, and its end."""
    try:
        for line in told:
            loop.call_soon_threadsafe(engine_ended, msgspec.json.decode(line, type=EngineEnded).message)
        loop.call_soon_threadsafe(stop)
    except RuntimeError:  # the loop is closed: this process is at its own end
        pass


def _answer(message: Started | StartFailed) -> None:
    """Say it, and leave standard output to the log: nobody reads on."""
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()
    os.dup2(2, 1)


if __name__ == "__main__":
    main()
