"""Messages between two processes: msgpack over a pair of ZeroMQ sockets in a private folder."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import zmq

from rose.engine.messages import FromEngine, ToEngine

_LINGER_MS = 1000


class EngineEnd:
    """The engine's end of the channel. Used by one thread."""

    def __init__(self, folder: Path) -> None:
        self._context = zmq.Context()
        self._inbox = self._context.socket(zmq.PULL)
        self._outbox = self._context.socket(zmq.PUSH)
        for socket in (self._inbox, self._outbox):
            socket.set_hwm(0)  # never drop, never block: the requests that are open bound what is under way
            socket.linger = _LINGER_MS
        self._inbox.bind(to_engine_address(folder))
        self._outbox.connect(from_engine_address(folder))
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def receive(self, wait: bool) -> Iterable[ToEngine]:
        """The messages that have arrived, oldest first; with `wait`, at least one."""
        messages: list[ToEngine] = []
        while True:
            try:
                frame = self._inbox.recv(0 if wait and not messages else zmq.NOBLOCK)
            except zmq.Again:
                return messages
            messages.append(self._decoder.decode(frame))

    def send(self, message: FromEngine) -> None:
        """Send without waiting."""
        self._outbox.send(self._encoder.encode(message))

    def close(self) -> None:
        """Let what was sent leave, and close."""
        self._inbox.close()
        self._outbox.close()
        self._context.term()


def to_engine_address(folder: Path) -> str:
    """Where the engine hears its frontend."""
    return f"ipc://{folder}/to"


def from_engine_address(folder: Path) -> str:
    """Where the frontend hears its engine."""
    return f"ipc://{folder}/from"
