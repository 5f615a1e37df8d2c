"""Input items to messages."""

from typing import Any

import pytest

from rose.chat.conversation import Message, ToolCall
from rose.server.responses.items import to_messages
from rose.server.responses.schema import STORED_ITEMS

USER = {"role": "user", "content": "tide?"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def call(n: int, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"call_{n}", "name": "tide", "arguments": "{}"} | more


def result(n: int, output: Any = "4") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"call_{n}", "output": output}


def made(*numbers: int) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(f"call_{n}", "tide", "{}") for n in numbers)


A = "assistant"


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([THOUGHT, said("4.")], [Message(A, "4.", "Hm.")]),
        ([THOUGHT, call(1), result(1)], [Message(A, "", "Hm.", made(1)), Message("tool", "4", tool_call_id="call_1")]),
        ([call(1), call(2)], [Message(A, tool_calls=made(1, 2))]),
        ([said("I look."), call(1)], [Message(A, "I look.", None, made(1))]),
        ([said("I look."), THOUGHT, call(1)], [Message(A, "I look.", "Hm.", made(1))]),
        ([THOUGHT, call(1), THOUGHT, call(2)], [Message(A, "", "Hm.", made(1)), Message(A, "", "Hm.", made(2))]),
        ([said("one"), said("two")], [Message(A, "one"), Message(A, "two")]),
        ([call(1), said("done")], [Message(A, tool_calls=made(1)), Message(A, "done")]),
        ([call(1, status="incomplete")], []),
        (
            [call(1, status="incomplete"), result(1, [{"type": "input_text", "text": "no"}])],
            [Message(A, tool_calls=made(1)), Message("tool", "no", tool_call_id="call_1")],
        ),
        ([THOUGHT | {"content": None, "summary": [{"type": "summary_text", "text": "S"}]}], [Message(A, "", "S")]),
        ([{"type": "item_reference", "id": "x"}, {"id": "y"}, {"type": "mcp_call"}], []),
    ],
)
def test_the_assistants_items_become_as_few_messages_as_they_can(items: Any, expected: list[Message]) -> None:
    messages = to_messages(STORED_ITEMS.validate_python([USER, *items]))
    assert list(messages) == [Message("user", "tide?"), *expected]
