"""The events of responses that are streamed from the background: kept, so that readers can come, go and come again."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence

import msgspec

from rose.server.responses.events import StreamEvent
from rose.server.sse import sse_event

MAX_BYTES_KEPT = 64 << 20

_encoder = msgspec.json.Encoder()


def frame(event: StreamEvent) -> bytes:
    """The event as it is sent."""
    return sse_event(event.event_type, _encoder.encode(event))


class EventLog:
    """All events of one response, from its first. An event's place is its sequence number."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._frames: list[bytes] = []
        self._is_over = False
        self._grown = asyncio.Event()

    def append(self, events: Sequence[StreamEvent]) -> None:
        """Add what has happened."""
        frames = [frame(event) for event in events]
        self._frames += frames
        self.num_bytes += sum(map(len, frames))
        self._wake()

    def end(self) -> None:
        """Nothing more will happen."""
        self._is_over = True
        self._wake()

    async def follow(self, starting_after: int = -1) -> AsyncGenerator[bytes, None]:
        """The frames of the events after the one with that number: those that were, and those to come."""
        position = starting_after + 1
        while True:
            grown = self._grown
            if position < len(self._frames):
                new = self._frames[position:]
                position += len(new)
                yield b"".join(new)
            elif self._is_over:
                return
            else:
                await grown.wait()

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()


class EventLogs:
    """The logs by their responses' ids. Of those that are over, the oldest are forgotten beyond a size."""

    def __init__(self, max_bytes: int = MAX_BYTES_KEPT) -> None:
        self._max_bytes = max_bytes
        self._logs: dict[str, EventLog] = {}
        self._over: OrderedDict[str, int] = OrderedDict()  # with their sizes

    def open(self, response_id: str) -> EventLog:
        """Begin a log."""
        self._logs[response_id] = EventLog()
        return self._logs[response_id]

    def get(self, response_id: str) -> EventLog | None:
        """The log, if there was one and it is still here."""
        return self._logs.get(response_id)

    def close(self, response_id: str) -> None:
        """The response has ended. Nothing changes if its log was forgotten meanwhile."""
        log = self._logs.get(response_id)
        if log is None:
            return
        self._over[response_id] = log.num_bytes
        while sum(self._over.values()) > self._max_bytes and len(self._over) > 1:
            self.forget(next(iter(self._over)))

    def forget(self, response_id: str) -> None:
        """Drop a log, if there is one. Who reads it reads on."""
        self._logs.pop(response_id, None)
        self._over.pop(response_id, None)
