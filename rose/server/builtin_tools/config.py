"""Which built-in tools a server has, in frozen objects that can cross to another process."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Isolation = Literal["namespaces", "limits"]


@dataclass(frozen=True, slots=True)
class McpAddress:
    """Where a server of tools is. token: sent as a bearer token. timeout_s: how long one request may take."""

    url: str
    token: str | None = None
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool as its server describes it. parameters: the JSON schema of its arguments."""

    name: str
    description: str | None
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WebSearchSettings:
    """A server of tools, and which of them is `search`, which `open` and `find`, if it has such."""

    address: McpAddress
    tools: Mapping[str, McpTool]


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """The tools that are switched on. code_interpreter: how its code is kept apart."""

    code_interpreter: Isolation | None = None
    web_search: WebSearchSettings | None = None
