"""Giving up work that nobody waits for any more."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

Result = TypeVar("Result")


class ClientGone(Exception):
    """The client closed its connection before the answer was there."""


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled, with `ClientGone` raised, as soon as the client is gone.

    The request's body must have been read: after it, the next message can only be the disconnect.
    """
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_wait_for_disconnect(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
