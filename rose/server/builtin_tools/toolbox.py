"""The built-in tools that a server has, and what one answer does with them."""

from collections.abc import Mapping
from dataclasses import dataclass

from rose.chat.conversation import BuiltinTool
from rose.server.builtin_tools import code_interpreter, web_search
from rose.server.builtin_tools.code_interpreter import CodeInterpreter
from rose.server.builtin_tools.config import ToolSettings
from rose.server.builtin_tools.result import ToolResult
from rose.server.builtin_tools.sandbox import Sandbox
from rose.server.builtin_tools.web_search import WebSearch, WebSearchSession

CODE_INTERPRETER = "code_interpreter"
WEB_SEARCH = "web_search"
_SEARCH_TYPES = (WEB_SEARCH, "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11")


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools that are switched on; by default none."""

    code_interpreter: CodeInterpreter | None = None
    web_search: WebSearch | None = None

    @classmethod
    def of(cls, settings: ToolSettings) -> "Toolbox":
        """The tools that the settings ask for."""
        isolation, search = settings.code_interpreter, settings.web_search
        return cls(
            None if isolation is None else CodeInterpreter(Sandbox(isolation)),
            None if search is None else WebSearch(search),
        )

    @property
    def by_type(self) -> Mapping[str, BuiltinTool]:
        """The tools by the types under which the Responses API asks for them."""
        found = dict.fromkeys(_SEARCH_TYPES, self.web_search.tool) if self.web_search else {}
        return found | ({CODE_INTERPRETER: self.code_interpreter.tool} if self.code_interpreter else {})

    def session(self) -> "ToolSession":
        """What one answer uses them by; it must be closed."""
        return ToolSession(self)


class ToolSession:
    """The calls of one answer."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._web_search: WebSearchSession | None = None

    async def call(self, recipient: str, arguments: str) -> ToolResult:
        """Carry out a call of one of the tools. May take as long as the tools' own limits allow."""
        tools = self._toolbox
        if recipient == code_interpreter.NAME and tools.code_interpreter is not None:
            return await tools.code_interpreter.call(arguments)
        namespace, _, function = recipient.partition(".")
        assert namespace == web_search.NAME, recipient
        assert tools.web_search is not None, recipient
        if self._web_search is None:
            self._web_search = tools.web_search.session()
        return await self._web_search.call(function, arguments)

    async def close(self) -> None:
        """Let go of what the calls have opened."""
        if self._web_search is not None:
            await self._web_search.close()
