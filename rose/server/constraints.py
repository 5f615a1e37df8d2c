"""What clients demand of an answer's form and of tool calls, from the shapes in which the APIs say it.

The chat API nests what the Responses API writes flat; both are read here. What is demanded goes into `Conversation` and
`GenerationRequest`, and whether it can be enforced is found out when the grammar is made.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from rose.chat.answer_format import JsonFormat, ToolChoice
from rose.errors import RequestError
from rose.server.errors import unsupported

NO_BUILTINS: Mapping[str, str] = MappingProxyType({})

_FORMATS = ("text", "json_object", "json_schema")


def answer_format(wanted: Mapping[str, Any], *, param: str) -> JsonFormat | None:
    """The form that a `response_format`, or the Responses API's `text.format`, asks for; None for any text.

    param: the field's name in the API. A schema is enforced whether or not it is called strict. Raises `RequestError`.
    """
    kind = wanted.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return JsonFormat(param=param)
    if kind != "json_schema":
        raise _invalid(f"{param}.type", f"must be one of {', '.join(_FORMATS)}, not {kind!r}")
    is_nested = "json_schema" in wanted
    definition, path = (wanted["json_schema"], f"{param}.json_schema") if is_nested else (wanted, param)
    if definition is None:
        raise _invalid(path, "is missing", code="missing_required_parameter")
    if not isinstance(definition, Mapping):
        raise _invalid(path, "must be an object", code="invalid_type")
    schema = definition.get("schema")
    if schema is None:
        raise _invalid(f"{path}.schema", "is missing", code="missing_required_parameter")
    if not isinstance(schema, Mapping):
        raise _invalid(f"{path}.schema", "must be an object", code="invalid_type")
    name, description = (_text(definition, key, path) for key in ("name", "description"))
    return JsonFormat(schema, name, description, param=param)


def tool_choice(
    choice: str | Mapping[str, Any] | None,
    *,
    param: str = "tool_choice",
    builtins: Mapping[str, str] = NO_BUILTINS,
) -> ToolChoice | None:
    """What a `tool_choice` asks for; None if no tool may be called. Raises `RequestError`.

    An object names one function or some (`allowed_tools`), in the chat API's nested form or the flat one. builtins: the
    names of built-in tools by the types under which they can be chosen as well.
    """
    match choice:
        case None | "auto":
            return ToolChoice()
        case "none":
            return None
        case "required":
            return ToolChoice("required")
        case Mapping():
            return _named_choice(choice, param, builtins)
    raise _invalid(param, f"must be none, auto, required or a named function, not {choice!r}")


def _named_choice(choice: Mapping[str, Any], param: str, builtins: Mapping[str, str]) -> ToolChoice:
    kind = choice.get("type")
    if kind == "function" or kind in builtins:
        return ToolChoice("required", (_tool_name(choice, param, builtins),))
    if kind != "allowed_tools":
        raise unsupported(
            f"{param}.type", f"a {param} of type {kind!r} is not supported, only function and allowed_tools"
        )
    nested = choice.get("allowed_tools")
    allowed, path = (nested, f"{param}.allowed_tools") if isinstance(nested, Mapping) else (choice, param)
    tools = allowed.get("tools")
    if not isinstance(tools, list) or not tools:
        raise _invalid(f"{path}.tools", "must be a list of tools")
    names = tuple(_tool_name(tool, f"{path}.tools[{i}]", builtins) for i, tool in enumerate(tools))
    return ToolChoice(_mode(allowed.get("mode"), path), names)


def _mode(mode: object, path: str) -> Literal["auto", "required"]:
    if mode is None or mode == "auto":
        return "auto"
    if mode == "required":
        return "required"
    raise _invalid(f"{path}.mode", f"must be auto or required, not {mode!r}")


def _tool_name(tool: object, path: str, builtins: Mapping[str, str]) -> str:
    if not isinstance(tool, Mapping):
        raise _invalid(path, "must be an object", code="invalid_type")
    if tool.get("type") in builtins:
        return builtins[tool["type"]]
    if tool.get("type") != "function":
        raise unsupported(f"{path}.type", f"{path}: only functions can be chosen, not {tool.get('type')!r}")
    nested = tool.get("function")
    definition, path = (nested, f"{path}.function") if isinstance(nested, Mapping) else (tool, path)
    name = definition.get("name")
    if not isinstance(name, str):
        raise _invalid(f"{path}.name", "must be a string", code="invalid_type" if name is not None else None)
    return name


def _text(definition: Mapping[str, Any], key: str, path: str) -> str | None:
    value = definition.get(key)
    if value is not None and not isinstance(value, str):
        raise _invalid(f"{path}.{key}", "must be a string", code="invalid_type")
    return value


def _invalid(param: str, fault: str, *, code: str | None = "invalid_value") -> RequestError:
    return RequestError(f"{param} {fault}", param=param, code=code or "missing_required_parameter")
