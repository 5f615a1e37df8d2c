"""A response being generated: one path for streamed, whole and background responses."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress

from rose.log import get_logger
from rose.server.errors import ApiError, to_api_error
from rose.server.generation import Generation
from rose.server.responses.events import StreamEvent
from rose.server.responses.objects import Response
from rose.server.responses.writer import ResponseWriter

logger = get_logger(__name__)

_CANCEL_WAIT_S = 5.0


class ResponseRun:
    """A generation and the response that is written from it.

    save: keeps the response once it has ended. on_end: called once, however the run ends.
    """

    def __init__(
        self,
        generation: Generation,
        writer: ResponseWriter,
        *,
        save: Callable[[Response], Awaitable[None]],
        on_end: Callable[[str], None],
    ) -> None:
        self._generation = generation
        self._writer = writer
        self._save = save
        self._on_end = on_end
        self._is_cancelled = False
        self._ended = asyncio.Event()

    @property
    def response(self) -> Response:
        """The response as it is by now."""
        return self._writer.response

    async def events(self) -> AsyncGenerator[list[StreamEvent], None]:
        """What happens, in pieces that belong together; ends when the response has, and is saved.

        Raises what the generation raises, unless it was cancelled.
        """
        generation, writer = self._generation, self._writer
        try:
            yield list(writer.opening())
            try:
                async with aclosing(generation.deltas()) as deltas:
                    async for delta in deltas:
                        if events := list(writer.events(delta)):
                            yield events
                ending = [writer.finish(generation.usage)]
            except ApiError as error:
                if not (self._is_cancelled and error.code == "aborted"):
                    raise
                ending = list(writer.cancel(generation.usage))
            await self._keep()
            yield ending
        finally:
            await self.close()

    async def events_to_the_end(self) -> AsyncGenerator[list[StreamEvent], None]:
        """The same for readers who can be told of a failure only by an event."""
        try:
            async with aclosing(self.events()) as pieces:
                async for events in pieces:
                    yield events
        except Exception as error:
            ending = list(self._writer.fail(to_api_error(error), self._generation.usage))
            await self._keep()
            yield ending

    async def complete(self) -> Response:
        """The response, when it has ended. Raises what the generation raises."""
        async with aclosing(self.events()) as pieces:
            async for _ in pieces:
                pass
        return self.response

    async def complete_in_background(self) -> None:
        """Run to the end, whatever happens."""
        async for _ in self.events_to_the_end():
            pass

    async def cancel(self) -> Response:
        """End the generation early; the response, which is cancelled unless it ended before."""
        self._is_cancelled = True
        self._generation.abort()
        # A reader that reads nothing may hold the run up; the engine has stopped all the same.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), _CANCEL_WAIT_S)
        return self.response

    async def _keep(self) -> None:
        """Save the response. A full disk must not take a good answer from the one who waits for it."""
        try:
            await self._save(self.response)
        except Exception:
            logger.exception("the response %s could not be stored", self.response.id)

    async def close(self) -> None:
        """Release the generation. Harmless when the run has ended."""
        await self._generation.close()
        if not self._ended.is_set():
            self._ended.set()
            self._on_end(self.response.id)
