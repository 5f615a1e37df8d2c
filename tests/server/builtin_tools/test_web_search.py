"""The web search, against a real server of tools in a process of its own."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from rose.errors import ConfigError
from rose.server.builtin_tools.config import McpAddress
from rose.server.builtin_tools.result import MAX_CHARS, shortened
from rose.server.builtin_tools.web_search import WebSearch, find_tools
from tests.server.builtin_tools.rude_server import rude_server
from tests.server.builtin_tools.serving import mcp_server

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def address() -> Iterator[McpAddress]:
    with mcp_server() as url:
        yield McpAddress(url, timeout_s=30)


async def test_tools_are_found_by_their_names_or_as_they_are_mapped(address: McpAddress) -> None:
    found = await find_tools(address, {})
    assert list(found.tools) == ["search"]
    mapped = await find_tools(address, {"open": "fetch_page"})
    tool = WebSearch(mapped).tool
    assert tool.recipients == ("browser.search", "browser.open")
    assert [function.description for function in tool.functions] == ["Searches the pages.", "Gets a page."]
    assert set(tool.functions[0].parameters["properties"]) == {"query", "topn"}


@pytest.mark.parametrize("has_search", [True, False])
def test_what_takes_long_to_import_is_there_before_a_call_if_it_will_be_needed(has_search: bool) -> None:
    search = "WebSearchSettings(McpAddress('http://a/mcp'), {'search': McpTool('search', None, {})})"
    code = (
        "import sys\n"
        "from rose.server.builtin_tools.config import McpAddress, McpTool, ToolSettings, WebSearchSettings\n"
        "from rose.server.builtin_tools.toolbox import Toolbox\n"
        f"Toolbox.of(ToolSettings(web_search={search if has_search else None}))\n"
        "print('mcp.client.streamable_http' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == f"{has_search}\n"


@pytest.mark.parametrize(
    ("names", "told"), [({"search": "look"}, "no tool 'look'"), ({"close": "search"}, "no function 'close'")]
)
async def test_a_mapping_that_cannot_be_says_what_there_is(address: McpAddress, names: dict, told: str) -> None:
    with pytest.raises(ConfigError, match=rf"{told}.*search, fetch_page"):
        await find_tools(address, names)


async def test_calls_and_what_they_find(address: McpAddress) -> None:
    session = WebSearch(await find_tools(address, {"open": "fetch_page"})).session()
    try:
        found = await session.call("search", '{"query": "oban"}')
        assert found.text == "https://tides.example/oban Oban: high at 4."
        assert found.sources == ("https://tides.example/oban",)
        assert not found.failed
        opened = await session.call("open", '{"url": "https://tides.example/mallaig"}')
        assert opened.text == "Mallaig: high at 5."
        assert (await session.call("search", '{"query": "nowhere"}')).text == "(nothing was found)"
        broken = await session.call("search", '{"query": "break"}')
        assert broken.failed
        assert "the index is broken" in broken.text
        assert (await session.call("search", "oban")).failed, "no JSON"
        assert (await session.call("search", "{}")).failed, "no query"
        assert not (await session.call("search", '{"query": "oban"}')).failed, "and it goes on"
    finally:
        await session.close()


async def test_a_server_that_is_not_there() -> None:
    nowhere = McpAddress("http://127.0.0.1:9/mcp", timeout_s=5)
    with pytest.raises(ConfigError, match="--web-search: no tools at http://127"):
        await find_tools(nowhere, {})


async def test_a_server_that_has_gone_is_told_to_the_model() -> None:
    with mcp_server() as url:
        search = WebSearch(await find_tools(McpAddress(url, timeout_s=5), {}))
    session = search.session()
    try:
        async with asyncio.timeout(60):
            result = await session.call("search", '{"query": "oban"}')
        assert result.failed
        assert result.text.startswith("The web cannot be reached")
    finally:
        await session.close()


async def test_a_server_that_does_not_take_leave_is_not_waited_for() -> None:
    async with rude_server() as url:
        started = time.monotonic()
        session = WebSearch(await find_tools(McpAddress(url, timeout_s=30), {})).session()
        assert (await session.call("search", "{}")).failed
        await session.close()
        assert time.monotonic() - started < 10


async def test_long_failures_are_shortened() -> None:
    async with rude_server() as url:
        session = WebSearch(await find_tools(McpAddress(url, timeout_s=30), {})).session()
        try:
            result = await session.call("search", "{}")
        finally:
            await session.close()
    assert result.failed
    assert len(result.text) < 2000


def test_long_results_lose_their_middle() -> None:
    text = "a" * MAX_CHARS + "b" * 10
    short = shortened(text)
    assert "10 characters left out" in short
    assert short.startswith("a" * 100)
    assert short.endswith("b" * 10)
    assert shortened("short") == "short"
