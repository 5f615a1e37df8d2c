"""A response being generated: one path for streamed, whole and background responses.

Where the model calls a built-in tool, the tool is run and the model goes on with the result, in a generation of its
own; all of them together make one response.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from anyio import CancelScope

from rose.errors import ContextLengthExceeded
from rose.log import get_logger
from rose.server.builtin_tools.toolbox import ToolSession
from rose.server.errors import ApiError, to_api_error
from rose.server.generation import Generation, Usage
from rose.server.responses.events import StreamEvent
from rose.server.responses.objects import OutputItem, Response
from rose.server.responses.writer import ResponseWriter

logger = get_logger(__name__)

_CANCEL_WAIT_S = 5.0
_LOOK_S = 0.5

ResultT = TypeVar("ResultT")

GoOn = Callable[[Sequence[OutputItem], int, int], Awaitable[Generation | None]]
"""Starts the generation after a built-in tool's call, from the items by now, the tokens generated, and the number of
calls; None if there is no token left."""


class ResponseRun:
    """A generation, those that follow it, and the response that is written from them.

    tools, go_on: for calls of built-in tools, of which max_calls are run at most. is_alive: whether the engine is there
    to go on after a call. save: keeps the response once it has ended. on_end: called once, however the run ends.
    """

    def __init__(
        self,
        generation: Generation,
        writer: ResponseWriter,
        *,
        tools: ToolSession,
        go_on: GoOn,
        max_calls: int,
        is_alive: Callable[[], bool],
        save: Callable[[Response], Awaitable[None]],
        on_end: Callable[[str], None],
    ) -> None:
        self._started = [generation]
        self._writer = writer
        self._tools = tools
        self._go_on = go_on
        self._max_calls = max_calls
        self._is_alive = is_alive
        self._num_calls = 0
        self._save = save
        self._on_end = on_end
        self._between: asyncio.Task[Any] | None = None  # what is done between two generations
        self._is_cancelled = False
        self._ended = asyncio.Event()

    @property
    def response(self) -> Response:
        """The response as it is by now."""
        return self._writer.response

    @property
    def _generation(self) -> Generation:
        return self._started[-1]

    async def events(self) -> AsyncGenerator[list[StreamEvent], None]:
        """What happens, in pieces that belong together; ends when the response has, and is saved.

        Raises what the generations raise, unless it was cancelled.
        """
        writer = self._writer
        try:
            yield list(writer.opening())
            try:
                async with aclosing(self._generations()) as pieces:
                    async for events in pieces:
                        yield events
                ending = [writer.finish(self._usage())]
            except _Cancelled:
                ending = list(writer.cancel(self._usage()))
            except ApiError as error:
                if not (self._is_cancelled and error.code == "aborted"):
                    raise
                ending = list(writer.cancel(self._usage()))
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
            ending = list(self._writer.fail(to_api_error(error), self._usage()))
            await self._keep()
            yield ending

    async def complete(self) -> Response:
        """The response, when it has ended. Raises what the generation raises."""
        async with aclosing(self.events()) as pieces:
            async for _ in pieces:
                pass
        return self.response

    async def complete_in_background(self, tell: Callable[[list[StreamEvent]], None]) -> None:
        """Run to the end, whatever happens. tell: is given all events."""
        async for events in self.events_to_the_end():
            tell(events)

    async def cancel(self) -> Response:
        """End the response early; the response, which is cancelled unless it ended before."""
        self._is_cancelled = True
        self._generation.abort()
        if self._between is not None:
            self._between.cancel()
        # A reader that reads nothing may hold the run up; the engine has stopped all the same.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), _CANCEL_WAIT_S)
        return self.response

    async def _generations(self) -> AsyncGenerator[list[StreamEvent], None]:
        """What the generations bring, and the calls between them."""
        writer = self._writer
        while True:
            async with aclosing(self._generation.deltas()) as deltas:
                async for delta in deltas:
                    if events := list(writer.events(delta)):
                        yield events
            call = writer.pending_call
            if call is None:
                return
            if self._num_calls >= self._max_calls:  # the grammar leaves the model none: this is for other engines
                yield list(writer.leave_call())
                return
            self._num_calls += 1
            yield list(writer.running())
            result = await self._unless_cancelled(self._tools.call(*call))
            yield list(writer.take_result(result))
            following = await self._unless_cancelled(self._next_generation())
            if following is None:
                writer.cut()
                return
            self._started.append(following)
            if self._is_cancelled:  # which came too late to keep it from starting
                following.abort()

    async def _next_generation(self) -> Generation | None:
        """The generation that goes on after a call; None if there is no room for it."""
        try:
            return await self._go_on(self._writer.kept_items, self._usage().num_completion_tokens, self._num_calls)
        except ContextLengthExceeded:
            return None

    async def _unless_cancelled(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """The work's result. Raises `_Cancelled` when the response is cancelled meanwhile.

        Raises `ApiError` when the engine is gone, which is how a server ends too: a tool must not hold that up.
        """
        if self._is_cancelled:
            work.close()
            raise _Cancelled
        done = self._between = asyncio.create_task(work)
        try:
            while not (await asyncio.wait({done}, timeout=_LOOK_S))[0]:
                if not self._is_alive():
                    raise ApiError(503, "the server ended the request before it was finished", code="aborted")
            if done.cancelled():
                raise _Cancelled
            result: ResultT = done.result()
            return result
        finally:
            done.cancel()
            # A vanished client's task is cancelled again wherever it waits, but the work must come to its own end.
            with CancelScope(shield=True):
                await asyncio.wait({done})
            self._between = None

    def _usage(self) -> Usage:
        """Of all generations together: the prompt of each counts, most of which the prefix cache will have had."""
        usages = [generation.usage for generation in self._started]
        return Usage(
            num_prompt_tokens=sum(usage.num_prompt_tokens for usage in usages),
            num_cached_tokens=sum(usage.num_cached_tokens for usage in usages),
            num_completion_tokens=sum(usage.num_completion_tokens for usage in usages),
            num_reasoning_tokens=sum(usage.num_reasoning_tokens for usage in usages),
        )

    async def _keep(self) -> None:
        """Save the response. A full disk must not take a good answer from the one who waits for it."""
        try:
            await self._save(self._writer.kept_response)
        except ApiError:  # the store has said why
            logger.error("the response %s could not be stored", self.response.id)
        except Exception:
            logger.exception("the response %s could not be stored", self.response.id)

    async def close(self) -> None:
        """Release the generation and the tools. Harmless when the run has ended."""
        await self._generation.close()
        await self._tools.close()
        if not self._ended.is_set():
            self._ended.set()
            self._on_end(self.response.id)


class _Cancelled(Exception):
    """The response was cancelled between two generations."""
