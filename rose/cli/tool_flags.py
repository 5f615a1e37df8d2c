"""The flags of `rose serve` for tools that the server runs itself."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from rose.errors import ConfigError
from rose.log import get_logger

if TYPE_CHECKING:
    from rose.server.builtin_tools.config import ToolSettings

logger = get_logger(__name__)

_TOOLS = Group("Tools that the server runs, for the Responses API", sort_key=3)


@dataclass(frozen=True, kw_only=True)
class ToolFlags:
    """Which tools there are; none by default."""

    code_interpreter: Annotated[
        Literal["off", "namespaces", "limits"],
        Parameter(
            group=_TOOLS,
            help="Run Python that the model writes: in `namespaces` of its own, without network and without this "
            "machine's files; or under `limits` alone, with the server's own rights, where namespaces are not granted.",
        ),
    ] = "off"
    web_search: Annotated[
        str | None,
        Parameter(group=_TOOLS, help="Address of an MCP server (streamable HTTP) that searches the web."),
    ] = None
    web_search_tool: Annotated[
        list[str] | None,
        Parameter(
            group=_TOOLS,
            negative=(),
            help="Its tool for a function, such as search=NAME, open=NAME or find=NAME; may be given again.",
        ),
    ] = None
    web_search_token: Annotated[
        str | None, Parameter(group=_TOOLS, help="A token that is sent to it; better given in the environment.")
    ] = None


def tool_settings(flags: ToolFlags) -> "ToolSettings":
    """The tools that the flags ask for, tried out: code runs, and the other server has answered.

    Raises `ConfigError` for a flag that cannot be, and for what does not work here.
    """
    from rose.server.builtin_tools.config import McpAddress, ToolSettings
    from rose.server.builtin_tools.sandbox import Sandbox
    from rose.server.builtin_tools.web_search import find_tools

    search = None
    names = dict(_pair(text) for text in flags.web_search_tool or ())
    if flags.web_search is not None:
        if not flags.web_search.startswith(("http://", "https://")):
            raise ConfigError(f"--web-search must be an http or https address, not {flags.web_search!r}")
        search = asyncio.run(find_tools(McpAddress(flags.web_search, flags.web_search_token), names))
    elif names or flags.web_search_token is not None:
        raise ConfigError("--web-search-tool and --web-search-token need --web-search")
    if flags.code_interpreter == "off":
        return ToolSettings(web_search=search)
    asyncio.run(Sandbox(flags.code_interpreter).check())
    if flags.code_interpreter == "limits":
        logger.warning("the code interpreter runs what the model writes with this server's own rights")
    return ToolSettings(flags.code_interpreter, search)


def _pair(text: str) -> tuple[str, str]:
    function, _, name = text.partition("=")
    if not function or not name:
        raise ConfigError(f"--web-search-tool must be FUNCTION=NAME, such as search=web_search, not {text!r}")
    return function, name
