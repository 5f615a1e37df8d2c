"""Server-sent events: the frame, and a response that keeps quiet streams alive and never leaks its generator."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
_KEEP_ALIVE = b": keep-alive\n\n"


def sse_data(data: bytes) -> bytes:
    """One event that has only data, which must be free of line breaks, as JSON encoders leave it."""
    return b"data: " + data + b"\n\n"


def sse_event(name: str, data: bytes) -> bytes:
    """One event with a name. Likewise."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


class EventStreamResponse(StreamingResponse):
    """Streams the events of an async generator.

    A comment line is sent whenever nothing else was for `keep_alive_s`, since proxies cut connections that look idle.
    However the response ends, the generator is closed and `on_close` called before it returns: that is what aborts a
    vanished client's request at once. The generator's own `finally` would not do, since one that was never started
    has nothing to run it.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        on_close: Callable[[], Awaitable[None]],
        keep_alive_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        # `x-accel-buffering` asks nginx to pass events on as they come.
        super().__init__(events, headers={"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})
        self._events = events
        self._on_close = on_close
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, until its end or until the client is gone."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()
            await self._on_close()

    async def stream_response(self, send: Send) -> None:
        """Send the events, with a second task beside that fills long silences."""
        clock = asyncio.get_running_loop().time
        last_sent = clock()
        is_sending = False

        async def timed_send(message: Message) -> None:
            nonlocal last_sent, is_sending
            is_sending = True
            await send(message)
            is_sending = False
            last_sent = clock()

        async def fill_silences() -> None:
            while True:
                await asyncio.sleep(self._keep_alive_s / 2)
                # A send that waits for a slow reader is no silence, and nothing may follow the last one.
                if not is_sending and clock() - last_sent >= self._keep_alive_s:
                    await timed_send({"type": "http.response.body", "body": _KEEP_ALIVE, "more_body": True})

        filler = asyncio.create_task(fill_silences())
        try:
            await super().stream_response(timed_send)
        finally:
            filler.cancel()
