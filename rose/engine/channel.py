"""Messages between an engine's process and those of its frontends: msgpack over ZeroMQ sockets in a private folder.

Each frontend has a name. What it sends carries the name, and its share of what the engine says comes back on a socket
of its own. The frontend that started the engine is `OWNER`; it hears of the load, and tells when another has ended.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from rose.engine.messages import (
    Abort,
    AddRequest,
    EngineOutputs,
    EngineStats,
    FromEngine,
    FrontendGone,
    RequestOutput,
    ToEngine,
)
from rose.engine.request import num_completions
from rose.errors import RequestError

OWNER = "owner"

_LINGER_MS = 1000
_RECONNECT_MS = 10
_STATS_INTERVAL_S = 0.25  # between stats for a frontend that gets no outputs


class FrontendEnd:
    """A frontend's end of the channel. Used on one event loop."""

    def __init__(self, folder: Path, name: str) -> None:
        self._name = name.encode()
        self._context = zmq.Context()
        self._outbox = self._context.socket(zmq.PUSH)
        self._inbox = zmq.asyncio.Socket(self._context, zmq.PULL)
        self._outbox.setsockopt(zmq.SNDHWM, 0)
        self._inbox.setsockopt(zmq.RCVHWM, 0)
        # Who sends connects: then a message has a queue to wait in, whether or not the other side is there.
        self._outbox.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self._outbox.connect(_to_engine_address(folder))
        self._inbox.bind(_from_engine_address(folder, name))
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._context.closed

    def send(self, message: ToEngine) -> None:
        """Send without waiting. Raises `RequestError` for a number that the message cannot hold."""
        try:
            frame = self._encoder.encode(message)
        except OverflowError as error:
            raise RequestError("a number in the request does not fit 64 bits") from error
        self._outbox.send_multipart((self._name, frame), zmq.NOBLOCK)

    async def receive(self) -> FromEngine:
        """The next message, when it has arrived."""
        return self._decoder.decode(await self._inbox.recv())

    def close(self, linger_ms: int = 0) -> None:
        """Close; what was sent has so long to leave."""
        self._outbox.close(linger=linger_ms)
        self._inbox.close(linger=0)
        self._context.term()


@dataclass(slots=True)
class _Frontend:
    """A frontend, to the engine. awaits_news: it sent something, and was told nothing since."""

    name: str
    outbox: zmq.Socket[bytes]
    last_told: float = 0.0
    awaits_news: bool = False
    has_old_stats: bool = False


@dataclass(slots=True)
class _Route:
    """An open request: whose it is, and how many of its completions have not ended."""

    frontend: _Frontend
    num_finals_due: int


class EngineEnd:
    """The engine's end of the channel, for any number of frontends. Used by one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._context = zmq.Context()
        self._inbox = self._context.socket(zmq.PULL)
        self._inbox.set_hwm(0)  # never drop, never block: the requests that are open bound what is under way
        self._inbox.bind(_to_engine_address(folder))
        self._frontends: dict[str, _Frontend] = {}
        self._gone: set[str] = set()
        self._routes: dict[str, _Route] = {}
        self._stats = EngineStats()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToEngine)
        self._frontend(OWNER)

    def receive(self, wait: bool) -> Iterable[ToEngine]:
        """The messages that have arrived, oldest first; with `wait`, at least one."""
        if wait:  # for who knows how long, and old stats would stand as long
            for frontend in self._frontends.values():
                if frontend.has_old_stats:
                    self._tell(frontend, EngineOutputs(outputs=[], stats=self._stats))
        messages: list[ToEngine] = []
        while True:
            try:
                name, frame = self._inbox.recv_multipart(0 if wait and not messages else zmq.NOBLOCK)
            except zmq.Again:
                return messages
            messages += self._take(name.decode(), self._decoder.decode(frame))

    def send(self, message: FromEngine) -> None:
        """Give each frontend what is for it, without waiting."""
        if isinstance(message, EngineOutputs):
            self._send_outputs(message)
            return
        for frontend in self._frontends.values():
            self._tell(frontend, message)

    def close(self) -> None:
        """Let what was sent leave, and close."""
        self._inbox.close()
        for frontend in self._frontends.values():
            frontend.outbox.close()
        self._context.term()

    def _take(self, name: str, message: ToEngine) -> Iterable[ToEngine]:
        """What the engine should know of a message; keeps account of whose requests are open."""
        if name in self._gone:  # what a killed process had sent may arrive after the news of its end
            return ()
        frontend = self._frontend(name)
        frontend.awaits_news = True
        match message:
            case FrontendGone():
                return self._forget(message.name)
            case AddRequest():
                self._routes[message.request_id] = _Route(frontend, num_completions(message.sampling_params))
        return (message,)

    def _forget(self, name: str) -> list[ToEngine]:
        """Drop a frontend; returns what ends the requests that it left open."""
        self._gone.add(name)
        frontend = self._frontends.pop(name, None)
        if frontend is None:
            return []
        frontend.outbox.close(linger=0)
        left_open = [request_id for request_id, route in self._routes.items() if route.frontend is frontend]
        for request_id in left_open:
            del self._routes[request_id]
        return [Abort(request_id=request_id) for request_id in left_open]

    def _send_outputs(self, message: EngineOutputs) -> None:
        self._stats = message.stats
        shares: dict[str, list[RequestOutput]] = {}
        for output in message.outputs:
            route = self._routes.get(output.request_id)
            if route is None:  # its frontend is gone
                continue
            shares.setdefault(route.frontend.name, []).append(output)
            if output.finish_reason is not None:
                route.num_finals_due -= 1
                if route.num_finals_due == 0:
                    del self._routes[output.request_id]
        now = time.monotonic()
        for name, frontend in self._frontends.items():
            share = shares.get(name)
            if share is None and not frontend.awaits_news and now - frontend.last_told < _STATS_INTERVAL_S:
                frontend.has_old_stats = True
            else:
                self._tell(frontend, EngineOutputs(outputs=share or [], stats=message.stats))

    def _tell(self, frontend: _Frontend, message: FromEngine) -> None:
        frontend.last_told = time.monotonic()
        frontend.awaits_news = frontend.has_old_stats = False
        frontend.outbox.send(self._encoder.encode(message))

    def _frontend(self, name: str) -> _Frontend:
        frontend = self._frontends.get(name)
        if frontend is None:
            outbox = self._context.socket(zmq.PUSH)
            outbox.set_hwm(0)
            outbox.linger = _LINGER_MS
            outbox.connect(_from_engine_address(self._folder, name))
            frontend = self._frontends[name] = _Frontend(name, outbox)
        return frontend


def _to_engine_address(folder: Path) -> str:
    return f"ipc://{folder}/to"


def _from_engine_address(folder: Path, name: str) -> str:
    return f"ipc://{folder}/from-{name}"
