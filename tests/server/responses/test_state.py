"""Responses that outlive their request: stored, continued, cancelled, made in the background."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import ResponseItemList
from pydantic import TypeAdapter

from rose.chat.tokenizer import Tokenizer
from tests.fakes import by_token
from tests.server.conftest import Serve
from tests.server.responses.conftest import CALL, CUT, FINAL, TIDE, ask, ask_stream, ask_whole

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory" if request.param == "memory" else f"sqlite:{tmp_path}/responses.db"


async def test_going_on_from_a_response_is_sending_everything_again(
    serve: Serve, tokenizer: Tokenizer, store: str
) -> None:
    """The prompt is the same by either way, for the items are given back unchanged."""
    question = {"role": "user", "content": "tide?"}
    async with serve(CALL, response_store=store) as server:
        first = await ask_whole(server, input=[question], tools=[TIDE], instructions="Be brief.")
        call = first["output"][-1]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "high at 4"}
        options = {"tools": [TIDE], "instructions": "Be brief."}
        second = await ask_whole(server, previous_response_id=first["id"], input=[result], **options)
        await ask_whole(server, input=[question, *first["output"], result], store=False, **options)
        references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        lost = {"type": "item_reference", "id": "rs_lost"}
        await ask_whole(server, input=[question, lost, *references, result], **options)
        third = await ask_whole(server, previous_response_id=second["id"], input="And then?", **options)
    _, by_id, by_items, by_reference, last = (added.prompt_token_ids for added in server.engine.submitted)
    assert by_id == by_items == by_reference
    prompt = tokenizer.decode(by_id, keep_special=True)
    assert "<|channel|>analysis<|message|>Need the tide.<|end|>" in prompt
    assert "functions.tide to=assistant<|channel|>commentary<|message|>high at 4" in prompt
    assert tokenizer.decode(last).count("tide?") == 1
    assert "And then?" in tokenizer.decode(last)
    assert third["previous_response_id"] == second["id"]


async def test_instructions_are_not_carried_over(serve: Serve, tokenizer: Tokenizer) -> None:
    async with serve(FINAL) as server:
        first = await ask_whole(server, instructions="Be brief.")
        await ask_whole(server, previous_response_id=first["id"], input="more")
    assert "Be brief." not in tokenizer.decode(server.engine.submitted[1].prompt_token_ids)


async def test_retrieve_list_and_delete(serve: Serve, store: str) -> None:
    items = [{"role": "user", "content": f"number {i}"} for i in range(3)]
    async with serve(FINAL, response_store=store) as server:
        made = (await ask_stream(server, input=items))[-1]["response"]
        path = f"/v1/responses/{made['id']}"
        assert (await server.http.get(path)).json() == made
        listed = (await server.http.get(f"{path}/input_items", params={"limit": 2})).json()
        TypeAdapter(ResponseItemList).validate_python(listed)
        assert [item["content"][0]["text"] for item in listed["data"]] == ["number 2", "number 1"]
        assert listed["has_more"]
        rest = (await server.http.get(f"{path}/input_items", params={"after": listed["last_id"]})).json()
        assert [item["content"][0]["text"] for item in rest["data"]] == ["number 0"]
        up = (await server.http.get(f"{path}/input_items", params={"order": "asc"})).json()
        assert up["first_id"] == rest["data"][0]["id"]
        refused = await server.http.get(f"{path}/input_items", params={"limit": 0})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "limit")
        assert (await server.http.delete(path)).json() == {"id": made["id"], "object": "response", "deleted": True}
        for gone in (server.http.get(path), server.http.delete(path), server.http.get(f"{path}/input_items")):
            response = await gone
            assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
        assert (await ask(server, previous_response_id=made["id"])).status_code == 400


async def test_sqlite_survives_the_server(serve: Serve, tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/responses.db"
    async with serve(FINAL, response_store=store) as server:
        first = await ask_whole(server)
    async with serve(FINAL, response_store=store) as server:
        assert (await server.http.get(f"/v1/responses/{first['id']}")).json() == first
        await ask_whole(server, previous_response_id=first["id"], input="more")


@pytest.mark.parametrize(("settings", "options"), [({}, {"store": False}), ({"response_store": "none"}, {})])
async def test_what_is_not_stored_is_not_there(serve: Serve, settings: Any, options: Any) -> None:
    async with serve(FINAL, **settings) as server:
        made = await ask_whole(server, **options)
        assert made["store"] is False
        assert (await server.http.get(f"/v1/responses/{made['id']}")).status_code == 404


async def test_a_call_that_was_cut_is_no_call_later(serve: Serve, tokenizer: Tokenizer) -> None:
    async with serve(CALL) as server:
        cut = await ask_whole(server, tools=[TIDE], max_output_tokens=CUT)
        await ask_whole(server, previous_response_id=cut["id"], input="go on", tools=[TIDE])
    assert "to=functions.tide" not in tokenizer.decode(server.engine.submitted[1].prompt_token_ids)


async def until(server: Any, response_id: str, *statuses: str) -> dict[str, Any]:
    for _ in range(500):
        response = (await server.http.get(f"/v1/responses/{response_id}")).json()
        if response["status"] in statuses:
            return response
        await asyncio.sleep(0.01)
    raise AssertionError(response)


async def test_in_the_background(serve: Serve, store: str) -> None:
    async with serve(FINAL, step_s=0.002, response_store=store) as server:
        started = await ask_whole(server, background=True)
        assert (started["status"], started["background"], started["output"]) == ("in_progress", True, [])
        assert (await ask(server, previous_response_id=started["id"])).json()["error"]["code"] == "invalid_value"
        ended = await until(server, started["id"], "completed")
    assert ended["output"][1]["content"][0]["text"] == "High at 4."


async def test_cancelling(serve: Serve, tokenizer: Tokenizer) -> None:
    steps = [*by_token(tokenizer.encode_with_special("<|channel|>final<|message|>High")), 60.0]
    async with serve(script=lambda _: steps) as server:
        started = await ask_whole(server, background=True)
        cancelled = (await server.http.post(f"/v1/responses/{started['id']}/cancel")).json()
        assert cancelled["status"] == "cancelled"
        assert (await until(server, started["id"], "cancelled"))["output"] == cancelled["output"]
        again = await server.http.post(f"/v1/responses/{started['id']}/cancel")
        assert again.json()["status"] == "cancelled"
        assert (await server.http.post("/v1/responses/resp_lost/cancel")).status_code == 404
    assert server.engine.aborted


async def test_a_background_response_that_fails(serve: Serve, tokenizer: Tokenizer) -> None:
    async with serve(script=lambda _: [0.02]) as server:
        started = await ask_whole(server, background=True)
        server.engine.die()
        assert (await until(server, started["id"], "failed"))["error"]["code"] == "server_error"


async def test_what_a_killed_server_left_has_failed(serve: Serve, tmp_path: Path, tokenizer: Tokenizer) -> None:
    store = f"sqlite:{tmp_path}/responses.db"
    async with serve(script=lambda _: [60.0], response_store=store) as server:
        started = await ask_whole(server, background=True)
        async with serve(FINAL, response_store=store) as other:
            found = (await other.http.get(f"/v1/responses/{started['id']}")).json()
            assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
        await server.http.post(f"/v1/responses/{started['id']}/cancel")


async def test_truncation_drops_the_oldest_turns(serve: Serve, tokenizer: Tokenizer) -> None:
    turns = [
        item
        for i in range(20)
        for item in ({"role": "user", "content": f"question {i}? " + "x" * 300}, {"role": "assistant", "content": "A"})
    ]
    head = {"role": "developer", "content": "Be brief."}
    body = {"input": [head, *turns, {"role": "user", "content": "last question"}], "max_output_tokens": 16}
    async with serve(FINAL, max_model_len=1200) as server:
        assert (await ask(server, **body)).json()["error"]["code"] == "context_length_exceeded"
        made = await ask_whole(server, truncation="auto", **body)
        too_long = await ask(server, truncation="auto", input="tide " * 9000)
    prompt = tokenizer.decode(server.engine.submitted[0].prompt_token_ids)
    assert made["truncation"] == "auto"
    assert "Be brief." in prompt
    assert "last question" in prompt
    assert "question 19?" in prompt
    assert "question 0?" not in prompt
    assert len(server.engine.submitted[0].prompt_token_ids) > 800, "no more is dropped than must be"
    assert too_long.json()["error"]["code"] == "context_length_exceeded"
