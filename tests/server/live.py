"""The application on a real socket, for clients that bring their own connections."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from rose.chat.registry import get_format
from rose.chat.tokenizer import Tokenizer
from rose.server.app import create_app
from rose.server.http import HttpServer, address_of, bind
from rose.server.settings import ServerSettings
from tests.fakes import FakeEngine


class LiveServer:
    """A server in a thread of its own."""

    def __init__(self, engine: FakeEngine, tokenizer: Tokenizer, settings: ServerSettings, grace_s: float) -> None:
        self.engine = engine
        self._listener = bind("127.0.0.1", 0)
        self.url = address_of(self._listener)
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._server = HttpServer(
            create_app(engine, get_format("harmony", tokenizer), tokenizer, settings),
            on_started=self._started.set,
            on_stopping=engine.close,
            grace_s=grace_s,
        )
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._server.serve(sockets=[self._listener]))

    def __enter__(self) -> "LiveServer":
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join(10)
        self._listener.close()
        assert not self._thread.is_alive()

    def stop(self) -> None:
        """What a signal does."""
        self._loop.call_soon_threadsafe(self._server.handle_exit, 15, None)

    def call(self, function: Callable[[], Any]) -> None:
        """Call something on the server's loop."""
        self._loop.call_soon_threadsafe(function)


@contextlib.contextmanager
def live_server(
    engine: FakeEngine, tokenizer: Tokenizer, *, grace_s: float = 0.2, **settings: Any
) -> Iterator[LiveServer]:
    """Start a server, and see it end."""
    settings = {"served_model_names": ("rose-test",)} | settings
    with LiveServer(engine, tokenizer, ServerSettings(**settings), grace_s) as server:
        yield server
