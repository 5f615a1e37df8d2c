"""Functions in namespaces, as Codex sends those of MCP servers."""

from typing import Any

import pytest

from rose.chat.tokenizer import Tokenizer
from tests.server.conftest import Serve
from tests.server.responses.conftest import FINAL, THINK, TIDE, ask, ask_stream, ask_whole

pytestmark = pytest.mark.anyio

HARBOUR: dict[str, Any] = {
    "type": "namespace",
    "name": "mcp__harbour",
    "description": "What the harbour knows.",
    "tools": [TIDE | {"description": "When it is high."}, {"type": "function", "name": "wind"}],
}
HEADER = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>"
CALL = THINK + HEADER.format("mcp__harbour__tide") + '{"port":"Oban"}<|call|>'


async def test_a_loop(serve: Serve, tokenizer: Tokenizer) -> None:
    """The call has the client's names, and comes back under the model's, whether it is given back or was kept."""
    question = {"role": "user", "content": "tide?"}
    async with serve(CALL) as server:
        events = await ask_stream(server, input=[question], tools=[TIDE, HARBOUR])
        first = await ask_whole(server, input=[question], tools=[TIDE, HARBOUR])
        *_, call = first["output"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "high at 4"}
        await ask_whole(server, input=[question, *first["output"], result], tools=[TIDE, HARBOUR])
        await ask_whole(server, input=[result], previous_response_id=first["id"], tools=[TIDE, HARBOUR])
    calls = [event["item"] for event in events if event.get("item", {}).get("type") == "function_call"]
    assert [(each["namespace"], each["name"]) for each in (*calls, call)] == [("mcp__harbour", "tide")] * 3
    assert calls[-1]["arguments"] == call["arguments"] == '{"port":"Oban"}'
    assert first["tools"][1]["tools"][0]["description"] == "When it is high.", "as they were asked for"
    *_, given, kept = (request.prompt_token_ids for request in server.engine.submitted)
    assert given == kept
    prompt = tokenizer.decode(given, keep_special=True)
    assert HEADER.format("mcp__harbour__tide") + '{"port":"Oban"}<|call|>' in prompt
    assert "functions.mcp__harbour__tide to=assistant" in prompt
    assert "// What the harbour knows.\n// When it is high.\ntype mcp__harbour__tide = " in prompt
    assert "// What the harbour knows.\ntype mcp__harbour__wind = " in prompt


async def test_a_function_outside_keeps_its_name(serve: Serve) -> None:
    """Also if a namespace has one of that name."""
    async with serve(THINK + HEADER.format("tide") + "{}<|call|>") as server:
        *_, call = (await ask_whole(server, tools=[TIDE, HARBOUR]))["output"]
    assert call["name"] == "tide"
    assert "namespace" not in call


async def test_what_is_no_function_is_left_out(serve: Serve, tokenizer: Tokenizer) -> None:
    custom = {"type": "custom", "name": "poem"}
    async with serve(FINAL) as server:
        response = await ask(server, tools=[HARBOUR | {"tools": [*HARBOUR["tools"], custom]}])
    assert response.headers["x-rose-ignored-fields"] == "tools.namespace.custom"
    assert "poem" not in tokenizer.decode(server.engine.submitted[0].prompt_token_ids)


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "namespace", "tools": [TIDE]}], "tools[0].name"),
        ([TIDE, HARBOUR | {"tools": [TIDE, {"type": "function"}]}], "tools[1].tools[1].name"),
        ([TIDE | {"name": "mcp__harbour__tide"}, HARBOUR], "tools[0].name"),
        ([HARBOUR, HARBOUR | {"name": "mcp", "tools": [TIDE | {"name": "harbour__tide"}]}], "tools[0].tools[0].name"),
        ([HARBOUR | {"tools": {}}], "tools[0].tools"),
    ],
)
async def test_names_that_cannot_be(serve: Serve, tools: list[dict[str, Any]], param: str) -> None:
    async with serve(FINAL) as server:
        response = await ask(server, tools=tools)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
