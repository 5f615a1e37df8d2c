"""Which of a request's tools the model is offered: functions, and the built-in tools that this server has."""

from collections.abc import Mapping
from typing import Any

from rose.chat.answer_format import ToolChoice
from rose.chat.conversation import BuiltinTool
from rose.errors import RequestError
from rose.server.builtin_tools.toolbox import CODE_INTERPRETER, Toolbox
from rose.server.constraints import tool_choice
from rose.server.errors import unsupported
from rose.server.responses.namespaces import functions_of
from rose.server.responses.schema import ResponsesRequest, Tool


class OfferedTools:
    """A request's tools, sorted. Raises `RequestError` for one that cannot be offered as it is asked for."""

    def __init__(self, body: ResponsesRequest, toolbox: Toolbox) -> None:
        available = toolbox.by_type
        asked = [(i, tool) for i, tool in enumerate(body.tools or ()) if is_offered(tool, toolbox)]
        self._asked = [tool for _, tool in asked]
        names = {available[tool.type].name for tool in self._asked if tool.type in available}
        self._builtin_types = {kind: tool.name for kind, tool in available.items() if tool.name in names}
        self.choice = self._choice(body)
        functions = [function for i, tool in asked for function in functions_of(tool, f"tools[{i}]")]
        self.namespaced = {each.tool.name: each.namespaced for each in functions if each.namespaced is not None}
        builtins: dict[str, BuiltinTool] = {}
        for i, tool in asked:
            if tool.type in available:
                _check_builtin(tool, f"tools[{i}]")
                builtins[available[tool.type].name] = available[tool.type]
        # What the model is not told of, it does not call.
        self.functions = () if self.choice is None else tuple(function.tool for function in functions)
        self.builtins = () if self.choice is None else tuple(builtins[name] for name in sorted(builtins))
        for function in functions:
            param, name = f"{function.path}.name", function.tool.name
            if name in self.recipients:
                message = f"{param}: {name!r} is what the model calls a built-in tool of this request"
                raise RequestError(message, param=param, code="invalid_value")
            if function.namespaced != self.namespaced.get(name):
                message = f"{param}: {name!r} is what the model calls a function in another namespace, too"
                raise RequestError(message, param=param, code="invalid_value")

    @property
    def recipients(self) -> frozenset[str]:
        """The names under which the model calls the built-in tools."""
        return frozenset(recipient for tool in self.builtins for recipient in tool.recipients)

    def is_builtin(self, name: str) -> bool:
        """Whether a call is a built-in tool's: also of a function that the tool does not have, which the tool tells."""
        namespaces = {tool.name for tool in self.builtins if tool.functions}
        is_functions = any(tool.name == name for tool in self.functions)
        return name in self.recipients or (name.partition(".")[0] in namespaces and not is_functions)

    def choice_after(self, *, may_call_builtins: bool) -> ToolChoice:
        """What may be called once a built-in tool was: a demand for a call is met by then."""
        choice = self.choice or ToolChoice()
        # A built-in tool that was named was demanded and no more; an `allowed_tools` goes on to hold.
        names = choice.names if choice.mode == "auto" else None
        if not may_call_builtins:
            names = tuple(tool.name for tool in self.functions if names is None or tool.name in names)
        return ToolChoice("auto", names)

    def as_asked(self) -> list[dict[str, Any]]:
        """The tools as the response repeats them."""
        return [_echo(tool) for tool in self._asked]

    def _choice(self, body: ResponsesRequest) -> ToolChoice | None:
        choice = body.tool_choice
        wanted: str | Mapping[str, Any] | None = (
            choice if choice is None or isinstance(choice, str) else choice.model_dump()
        )
        return tool_choice(wanted, builtins=self._builtin_types)


def is_offered(tool: Tool, toolbox: Toolbox) -> bool:
    """Whether the tool can be had here. A search that must not reach the web is none."""
    if tool.type in ("function", "namespace"):
        return True
    fields = tool.model_extra or {}
    return tool.type in toolbox.by_type and fields.get("external_web_access") is not False


def _check_builtin(tool: Tool, path: str) -> None:
    """Refuse what would change the tool's work and cannot be had."""
    fields = tool.model_extra or {}
    if tool.type != CODE_INTERPRETER:
        if filters := {name: value for name, value in (fields.get("filters") or {}).items() if value}:
            raise unsupported(f"{path}.filters", f"{path}.filters: {', '.join(filters)} cannot be had here")
        return
    container = fields.get("container")
    if not isinstance(container, dict):
        if container is not None:
            message = f'{path}.container: no container is kept here; ask for {{"type": "auto"}}'
            raise unsupported(f"{path}.container", message)
        return
    if container.get("file_ids"):
        raise unsupported(f"{path}.container.file_ids", f"{path}.container: there are no files here to use")
    policy = container.get("network_policy")
    if isinstance(policy, dict) and policy.get("type") != "disabled":
        raise unsupported(f"{path}.container.network_policy", f"{path}.container: the code is given no network")


def _echo(tool: Tool) -> dict[str, Any]:
    if tool.type != "function":
        default = {"container": {"type": "auto"}} if tool.type == CODE_INTERPRETER else {}
        return default | tool.model_dump(exclude_none=True)
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict is not False,
    }
