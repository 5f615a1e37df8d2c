"""The wish for a summary of the reasoning."""

from typing import Any

import pytest

from rose.chat.tokenizer import Tokenizer
from tests.server.conftest import Serve
from tests.server.responses.conftest import CALL, FINAL, TIDE, ask, ask_stream, ask_whole, names

pytestmark = pytest.mark.anyio

SUMMARY = [
    "output_item.added",
    "reasoning_summary_part.added",
    "reasoning_summary_text.delta",
    "reasoning_summary_text.done",
    "reasoning_summary_part.done",
    "output_item.done",
]


@pytest.mark.parametrize("wish", [{"summary": "auto"}, {"summary": "detailed"}, {"generate_summary": "concise"}])
async def test_the_reasoning_takes_the_summarys_place(serve: Serve, wish: dict[str, str]) -> None:
    async with serve(FINAL, reasoning_summary="text") as server:
        whole = await ask_whole(server, reasoning=wish)
        events = await ask_stream(server, reasoning=wish)
    item = whole["output"][0]
    assert item["summary"] == [{"type": "summary_text", "text": "Need the tide."}]
    assert item["content"] == [], "it is told once"
    assert names(events)[2 : 2 + len(SUMMARY)] == SUMMARY
    deltas = [e for e in events if e["type"] == "response.reasoning_summary_text.delta"]
    assert "".join(e["delta"] for e in deltas) == "Need the tide."
    assert {(e["summary_index"], e["output_index"]) for e in deltas} == {(0, 0)}
    assert not any("reasoning_text" in e["type"] for e in events)


@pytest.mark.parametrize(
    ("setting", "wish"), [("none", {"summary": "auto"}), ("text", {}), ("text", {"summary": "none"}), ("text", None)]
)
async def test_otherwise_there_is_no_summary(serve: Serve, setting: str, wish: Any) -> None:
    async with serve(FINAL, reasoning_summary=setting) as server:
        item = (await ask_whole(server, reasoning=wish))["output"][0]
    assert item["summary"] == []
    assert item["content"] == [{"type": "reasoning_text", "text": "Need the tide."}]


async def test_the_summary_comes_back_as_the_reasoning_that_it_is(serve: Serve, tokenizer: Tokenizer) -> None:
    async with serve(CALL, reasoning_summary="text") as server:
        first = await ask_whole(server, tools=[TIDE], reasoning={"summary": "auto"})
        result = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "4"}
        await ask_whole(server, tools=[TIDE], input=[{"role": "user", "content": "?"}, *first["output"], result])
    prompt = tokenizer.decode(server.engine.submitted[-1].prompt_token_ids, keep_special=True)
    assert "<|channel|>analysis<|message|>Need the tide.<|end|>" in prompt


async def test_a_summary_of_an_unknown_kind_is_refused(serve: Serve) -> None:
    async with serve(FINAL, reasoning_summary="text") as server:
        response = await ask(server, reasoning={"summary": "long"})
    assert response.json()["error"]["param"] == "reasoning.summary"
