"""Functions, also those in namespaces: a client knows the latter by two names, the model by one.

Harmony has one namespace for functions, the one that the models were trained on, so a client's own becomes part of the
function's name, and its description comes before the function's.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rose.chat.conversation import FunctionTool
from rose.errors import RequestError
from rose.server.responses.schema import Tool


@dataclass(frozen=True, slots=True)
class OfferedFunction:
    """A function as the model sees it.

    path: where it is in the request. namespaced: the client's namespace and name, None if it is in no namespace.
    """

    path: str
    tool: FunctionTool
    namespaced: tuple[str, str] | None = None


def full_name(namespace: str | None, name: str) -> str:
    """The name by which the model knows a function."""
    return name if namespace is None else f"{namespace}__{name}"


def functions_of(tool: Tool, path: str) -> Iterator[OfferedFunction]:
    """The functions that an entry of `tools` stands for. path: the entry's. Raises `RequestError` for a lost name."""
    if tool.type == "function":
        yield OfferedFunction(path, _function(tool, _name(tool, path), tool.description))
    elif tool.type == "namespace":
        namespace = _name(tool, path)
        for i, inner in enumerate(tool.tools or ()):
            if inner.type == "function":
                inner_path = f"{path}.tools[{i}]"
                name = _name(inner, inner_path)
                description = "\n".join(text for text in (tool.description, inner.description) if text) or None
                function = _function(inner, full_name(namespace, name), description)
                yield OfferedFunction(inner_path, function, (namespace, name))


def left_out_of(tool: Tool) -> list[str]:
    """The types of what a namespace has besides functions."""
    return [inner.type for inner in tool.tools or () if inner.type != "function"] if tool.type == "namespace" else []


def _name(tool: Tool, path: str) -> str:
    if tool.name is None:
        raise RequestError(f"{path}.name is missing", param=f"{path}.name", code="missing_required_parameter")
    return tool.name


def _function(tool: Tool, name: str, description: str | None) -> FunctionTool:
    return FunctionTool(name, description, tool.parameters, strict=bool(tool.strict))
