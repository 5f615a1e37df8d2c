"""Input items and the chat they stand for, and how they are kept."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from rose.chat.conversation import Message, ToolCall
from rose.errors import RequestError
from rose.server.body_parts import ContentPart
from rose.server.errors import unsupported
from rose.server.ids import new_id
from rose.server.responses.builtin_items import to_call, to_result, was_run
from rose.server.responses.namespaces import full_name
from rose.server.responses.schema import (
    CodeInterpreterCallInput,
    FunctionCallInput,
    FunctionCallOutput,
    InputItem,
    InputMessage,
    ItemReference,
    OtherItem,
    ReasoningInput,
    WebSearchCallInput,
)

_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_ID_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "code_interpreter_call": "ci",
    "web_search_call": "ws",
}


def as_items(given: str | Sequence[InputItem]) -> list[InputItem]:
    """The items of an `input`; a text is a user's message."""
    return [InputMessage(type="message", role="user", content=given)] if isinstance(given, str) else list(given)


def check_parts(items: Sequence[InputItem]) -> None:
    """Raise `RequestError` for a content part that is no text, by its place in the request."""
    for i, item in enumerate(items):
        name, content = ("output", item.output) if isinstance(item, FunctionCallOutput) else ("content", None)
        if isinstance(item, (InputMessage, ReasoningInput)):
            content = item.content
        for k, part in enumerate(content if isinstance(content, list) else ()):
            if part.type not in (*_TEXT_PARTS, "refusal"):
                message = f"content parts of type {part.type!r} are not supported, only text"
                raise unsupported(f"input[{i}].{name}[{k}].type", message)
            if part.type != "refusal" and part.text is None:
                param = f"input[{i}].{name}[{k}].text"
                raise RequestError("a text part needs a text", param=param, code="missing_required_parameter")


def to_messages(items: Sequence[InputItem]) -> tuple[Message, ...]:
    """The chat that the items make.

    What the assistant did between two messages of others becomes as few messages as it can, so that it is rendered as
    the model wrote it. A call that was cut off and never answered is left out: it is no call.
    """
    answered = {item.call_id for item in items if isinstance(item, FunctionCallOutput)}
    kept = [item for item in items if not isinstance(item, (ItemReference, OtherItem)) and not _is_cut(item, answered)]
    messages: list[Message] = []
    for is_assistants, items_in_a_row in groupby(kept, _is_assistants):
        group = list(items_in_a_row)
        messages += _turn(group) if is_assistants else map(_message, group)
    return tuple(messages)


def to_stored(items: Iterable[InputItem]) -> list[dict[str, Any]]:
    """The items as they are kept and listed: as they came, each with an id, and texts as parts."""
    return [_stored(item) for item in items if not isinstance(item, (ItemReference, OtherItem))]


def _is_cut(item: InputItem, answered: set[str]) -> bool:
    if isinstance(item, (CodeInterpreterCallInput, WebSearchCallInput)):
        return not was_run(item)
    return isinstance(item, FunctionCallInput) and item.status == "incomplete" and item.call_id not in answered


def _is_assistants(item: InputItem) -> bool:
    if isinstance(item, InputMessage):
        return item.role == "assistant"
    return isinstance(item, (ReasoningInput, FunctionCallInput, CodeInterpreterCallInput, WebSearchCallInput))


def _message(item: InputItem) -> Message:
    if isinstance(item, FunctionCallOutput):
        return Message("tool", _text(item.output), tool_call_id=item.call_id)
    assert isinstance(item, InputMessage)
    return Message(item.role, _text(item.content))


def _turn(items: Sequence[InputItem]) -> Iterator[Message]:
    """The assistant's items as messages: each is reasoning, then text, then calls, as a format renders them.

    A built-in tool's item holds its result as well, which is a message of its own.
    """
    kinds = (FunctionCallInput, CodeInterpreterCallInput, WebSearchCallInput)
    last_call = max((i for i, item in enumerate(items) if isinstance(item, kinds)), default=-1)
    reasoning: list[str] = []
    content: list[str] = []
    calls: list[ToolCall] = []

    def message() -> Message:
        made = Message("assistant", "\n\n".join(content), "\n\n".join(reasoning) or None, tuple(calls))
        for part in (reasoning, content, calls):
            part.clear()
        return made

    for i, item in enumerate(items):
        if calls and not isinstance(item, FunctionCallInput):
            yield message()
        if content and i > last_call:  # text that leads to no call was an answer, complete in itself
            yield message()
        match item:
            case ReasoningInput():
                reasoning.append(_text(item.content) or _text(item.summary))
            case FunctionCallInput():
                calls.append(ToolCall(item.call_id, full_name(item.namespace, item.name), item.arguments))
            case InputMessage():
                content.append(_text(item.content))
            case CodeInterpreterCallInput() | WebSearchCallInput():
                call = to_call(item)
                calls.append(call)
                yield message()
                yield to_result(item, call)
    if reasoning or content or calls:
        yield message()


def _text(content: str | Sequence[ContentPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text or part.refusal or "" for part in content)


def _stored(item: InputItem) -> dict[str, Any]:
    fields = item.model_dump(exclude_unset=True)
    kind = fields["type"] = fields.get("type") or "message"  # which may also be given as null
    if not fields.get("id"):
        fields["id"] = new_id(_ID_PREFIXES[kind])
    if kind == "message" and not isinstance(fields.get("content"), list):
        part = "output_text" if fields["role"] == "assistant" else "input_text"
        fields["content"] = [{"type": part, "text": fields.get("content") or ""}]
    return {"type": kind, "id": fields["id"]} | fields
