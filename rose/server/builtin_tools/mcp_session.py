"""A connection to a server of tools that speaks the Model Context Protocol over streamable HTTP.

The protocol's official package is an optional dependency, `rose[mcp]`: it knows the protocol's several versions and
their handshakes, which a client of our own would have to follow.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rose.errors import ConfigError
from rose.server.builtin_tools.config import McpAddress, McpTool

if TYPE_CHECKING:
    from mcp import Client

_CLOSE_WAIT_S = 2.0
_MAX_PAGES = 100

# The package takes two seconds to import, and may not be there: only servers with such tools import it.


def load_package() -> None:
    """Import the package now, since streams would wait for it later. Raises `ConfigError` if it is not installed."""
    try:
        import mcp.client.streamable_http  # noqa: F401
    except ImportError:
        raise ConfigError("web search needs the package mcp: pip install 'mcp>=2.3'") from None


@dataclass(frozen=True, slots=True)
class McpResult:
    """What a call came to: its texts joined, and the addresses of the resources that it links to."""

    text: str
    links: tuple[str, ...] = ()
    is_error: bool = False


class McpFailed(Exception):
    """The server could not be reached, or broke the protocol."""


async def list_tools(address: McpAddress) -> list[McpTool]:
    """All tools of the server. Raises `McpFailed`, and `ConfigError` if the package is not installed."""
    load_package()
    listed: asyncio.Future[list[McpTool]] = asyncio.get_running_loop().create_future()

    async def ask() -> None:
        async with _connected(address) as client:
            found, cursor = [], None
            for _ in range(_MAX_PAGES):
                page = await client.list_tools(cursor=cursor)
                found += [McpTool(tool.name, tool.description, tool.input_schema) for tool in page.tools]
                cursor = page.next_cursor
                if cursor is None:
                    listed.set_result(found)
                    await asyncio.Event().wait()  # until it is ended: then the server is told
            raise McpFailed(f"its list of tools has more than {_MAX_PAGES} pages")

    task = asyncio.create_task(ask())
    try:
        either: set[asyncio.Future[Any]] = {listed, task}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if listed.done():
            return listed.result()
        error = task.exception()  # the package raises groups of whatever its transports raise
        raise McpFailed(_reason(error) if error is not None else "the connection was closed")
    finally:
        await _leave(task)


class McpSession:
    """One connection, opened by the first call and kept for the next, as servers may remember what was opened.

    It lives in a task of its own, since the package wants it closed by the task that opened it.
    """

    def __init__(self, address: McpAddress) -> None:
        self._address = address
        self._calls: asyncio.Queue[tuple[str, dict[str, Any], asyncio.Future[McpResult]]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def call(self, name: str, arguments: dict[str, Any]) -> McpResult:
        """Call a tool. Raises `McpFailed`; the next call then connects anew."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._serve())
        answer: asyncio.Future[McpResult] = asyncio.get_running_loop().create_future()
        self._calls.put_nowait((name, arguments, answer))
        either: set[asyncio.Future[Any]] = {answer, self._task}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        self._calls = asyncio.Queue()
        error = self._task.exception()
        raise McpFailed(_reason(error) if error is not None else "the connection was closed")

    async def close(self) -> None:
        """Close the connection, if there is one. A server that takes its time to take leave is not waited for."""
        if self._task is not None:
            await _leave(self._task)

    async def _serve(self) -> None:
        async with _connected(self._address) as client:
            while True:
                name, arguments, answer = await self._calls.get()
                try:
                    result = await client.call_tool(name, arguments)
                except Exception as error:
                    if not answer.done():
                        answer.set_exception(McpFailed(_reason(error)))
                    continue
                texts = [part.text for part in result.content if part.type == "text"]
                links = [str(part.uri) for part in result.content if part.type == "resource_link"]
                if not answer.done():
                    answer.set_result(McpResult("\n".join(texts), tuple(links), bool(result.is_error)))


@contextlib.asynccontextmanager
async def _connected(address: McpAddress) -> AsyncGenerator["Client", None]:
    load_package()
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    headers = {} if address.token is None else {"authorization": f"Bearer {address.token}"}
    timeout = httpx2.Timeout(address.timeout_s)
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout) as http,
        Client(streamable_http_client(address.url, http_client=http), read_timeout_seconds=address.timeout_s) as client,
    ):
        yield client


async def _leave(task: asyncio.Task[None]) -> None:
    """End the task that holds a connection, which takes leave of the server, but not for as long as that one likes."""
    task.cancel()
    if not (await asyncio.wait({task}, timeout=_CLOSE_WAIT_S))[0]:
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # has been looked at: a connection that broke at its end is nobody's loss


def _reason(error: BaseException) -> str:
    """What went wrong, of a group the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
