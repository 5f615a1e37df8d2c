"""The outputs of each open request, on the frontend's event loop."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Self

from rose.engine.messages import AddRequest, RequestOutput
from rose.engine.request import num_completions
from rose.errors import EngineDead


class _Mailbox:
    """Between the table, which the engine's outputs reach, and the stream, which may be dropped by its reader."""

    def __init__(self, num_finals: int) -> None:
        self.num_finals_due = num_finals
        self.items: deque[RequestOutput | EngineDead] = deque()
        self.arrived = asyncio.Event()

    def put(self, item: RequestOutput | EngineDead) -> None:
        self.items.append(item)
        self.arrived.set()


class OutputStream:
    """Iterates over the outputs of one request until each completion had its final one.

    Raises `EngineDead` when the engine is gone. Closing it, or dropping it, before the end aborts the request.
    """

    def __init__(self, mailbox: _Mailbox, on_abandon: Callable[[], None]) -> None:
        self._mailbox = mailbox
        self._num_finals_unread = mailbox.num_finals_due
        self._on_abandon = on_abandon
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._num_finals_unread == 0:
            raise StopAsyncIteration
        mailbox = self._mailbox
        while not mailbox.items:
            mailbox.arrived.clear()
            await mailbox.arrived.wait()
        item = mailbox.items.popleft()
        if isinstance(item, EngineDead):
            self._num_finals_unread = 0
            raise item
        self._num_finals_unread -= item.finish_reason is not None
        return item

    async def aclose(self) -> None:
        """End the iteration, and abort what is unfinished of the request."""
        self._num_finals_unread = 0
        if self._mailbox.num_finals_due > 0:
            self._on_abandon()

    def __del__(self) -> None:
        # Leaving `async for` early closes nothing. The collector may run in any thread, or after the loop's end.
        if self._mailbox.num_finals_due > 0:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._on_abandon)


class StreamTable:
    """The open requests of a client. An abandoned one keeps its id until the engine has let go of it."""

    def __init__(self) -> None:
        self._mailboxes: dict[str, _Mailbox] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._mailboxes

    def __len__(self) -> int:
        return len(self._mailboxes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._mailboxes)

    def open(self, request: AddRequest, on_abandon: Callable[[], None]) -> OutputStream:
        """The stream of a new request, whose id is none of an open one."""
        mailbox = _Mailbox(num_completions(request.sampling_params))
        self._mailboxes[request.request_id] = mailbox
        return OutputStream(mailbox, on_abandon)

    def dispatch(self, outputs: Iterable[RequestOutput]) -> None:
        """Give each output to its stream."""
        for output in outputs:
            mailbox = self._mailboxes.get(output.request_id)
            if mailbox is None:
                continue
            if output.finish_reason is not None:
                mailbox.num_finals_due -= 1
                if mailbox.num_finals_due == 0:
                    del self._mailboxes[output.request_id]
            mailbox.put(output)

    def fail(self, message: str) -> None:
        """The engine is gone: every open stream raises `EngineDead` after what it still has."""
        for mailbox in self._mailboxes.values():
            mailbox.num_finals_due = 0
            mailbox.put(EngineDead(message))  # one each: an exception keeps the traceback of where it was raised
        self._mailboxes.clear()
