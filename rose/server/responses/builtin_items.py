"""Calls of built-in tools as chats have them, and back: an item is a call and its result in one."""

import json
from collections.abc import Iterator
from typing import Any

from rose.chat.conversation import Message, ToolCall
from rose.server.builtin_tools import code_interpreter, web_search
from rose.server.builtin_tools.result import ToolResult
from rose.server.builtin_tools.web_search import read_arguments
from rose.server.ids import new_id
from rose.server.responses.objects import FindInPage, OpenPage, Search, SearchSource
from rose.server.responses.schema import CodeInterpreterCallInput, WebSearchCallInput

BuiltinCallInput = CodeInterpreterCallInput | WebSearchCallInput

_NOT_KEPT = "(The result of this call is not known any more.)"
_FUNCTIONS = {"search": "search", "open_page": "open", "find_in_page": "find"}


def was_run(item: BuiltinCallInput) -> bool:
    """Whether the call came to a result; one that was cut off is no call."""
    return item.status in (None, "completed", "failed")


def is_partial(item: BuiltinCallInput) -> bool:
    """Whether the server keeps more of such an item than this one tells."""
    return lacks_result(item) or (isinstance(item, WebSearchCallInput) and item.arguments is None)


def lacks_result(item: BuiltinCallInput) -> bool:
    """Whether the item does not say what the call came to, since the client was not told."""
    return (item.outputs if isinstance(item, CodeInterpreterCallInput) else item.results) is None


def to_call(item: BuiltinCallInput) -> ToolCall:
    """The call as the model wrote it, or as nearly as the item tells."""
    call_id = item.id or new_id("call")
    if isinstance(item, CodeInterpreterCallInput):
        return ToolCall(call_id, code_interpreter.NAME, item.code or "", is_builtin=True)
    if item.recipient is not None and item.arguments is not None:
        return ToolCall(call_id, item.recipient, item.arguments, is_builtin=True)
    action = item.action or {}
    function = _FUNCTIONS.get(action.get("type") or "search", "search")
    values = {"query": action.get("query"), "id": action.get("url"), "pattern": action.get("pattern")}
    arguments = json.dumps({name: value for name, value in values.items() if value}, ensure_ascii=False)
    return ToolCall(call_id, f"{web_search.NAME}.{function}", arguments, is_builtin=True)


def to_result(item: BuiltinCallInput, call: ToolCall) -> Message:
    """The result, as the model was told it."""
    if lacks_result(item):
        text = _NOT_KEPT
    elif isinstance(item, CodeInterpreterCallInput):
        text = "".join(output.logs or "" for output in item.outputs or ())
    else:
        text = "".join(part.text or "" for part in item.results or ())
    return Message("tool", text, tool_call_id=call.id)


def to_action(recipient: str, arguments: str, result: ToolResult | None = None) -> Search | OpenPage | FindInPage:
    """What a call of the web search does, in the API's words."""
    values = read_arguments(arguments) or {}
    texts = dict(_texts(values))
    match recipient.rpartition(".")[2]:
        case "open":
            address = texts.get("url") or texts.get("id") or ""
            return OpenPage(url=address if "://" in address else None)
        case "find":
            return FindInPage(pattern=texts.get("pattern", ""), url=texts.get("url", ""))
    query = texts.get("query") or texts.get("q") or next(iter(texts.values()), "")
    sources = None if result is None else [SearchSource(url=url) for url in result.sources]
    return Search(query=query, queries=[query], sources=sources)


def _texts(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    return ((name, value) for name, value in values.items() if isinstance(value, str))
