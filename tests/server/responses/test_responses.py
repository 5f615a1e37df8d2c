"""`/v1/responses`, whole and streamed, over a scripted engine."""

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

from rose.chat.tokenizer import Tokenizer
from rose.engine.messages import AddRequest, RequestFailure
from rose.errors import EngineDead
from tests.fakes import by_token
from tests.server.conftest import MODEL, Serve
from tests.server.responses.conftest import CALL, CUT, FINAL, TIDE, ask, ask_stream, ask_whole, names

pytestmark = pytest.mark.anyio


def without_ids(value: Any) -> Any:
    """The same with ids and times taken out."""
    if isinstance(value, dict):
        fixed = {"id", "call_id", "item_id", "created_at", "completed_at"}
        return {key: without_ids(each) for key, each in value.items() if key not in fixed}
    return [without_ids(each) for each in value] if isinstance(value, list) else value


async def test_a_whole_answer(serve: Serve) -> None:
    async with serve(FINAL) as server:
        body = await ask_whole(server, model=MODEL, instructions="Be brief.", temperature=0.5, metadata={"a": "b"})
    assert re.fullmatch("resp_[0-9a-f]{32}", body["id"])
    assert (body["object"], body["status"], body["model"]) == ("response", "completed", MODEL)
    reasoning, message = body["output"]
    assert reasoning["type"] == "reasoning"
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Need the tide."}]
    assert reasoning["summary"] == []
    assert message["role"] == "assistant"
    assert message["content"] == [{"type": "output_text", "text": "High at 4.", "annotations": [], "logprobs": []}]
    assert {item["status"] for item in body["output"]} == {"completed"}
    assert (body["instructions"], body["temperature"], body["metadata"]) == ("Be brief.", 0.5, {"a": "b"})
    usage = body["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] == usage["input_tokens"] // 2
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]


REASONING = [
    "output_item.added",
    "content_part.added",
    "reasoning_text.delta",
    "reasoning_text.done",
    "content_part.done",
    "output_item.done",
]
TEXT = [name.replace("reasoning_text", "output_text") for name in REASONING]
ARGUMENTS = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]


@pytest.mark.parametrize(
    ("sampled", "options", "expected"),
    [
        (FINAL, {}, [*REASONING, *TEXT, "completed"]),
        (CALL, {"tools": [TIDE]}, [*REASONING, *ARGUMENTS, "completed"]),
        (
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" + CALL,
            {"tools": [TIDE]},
            [*TEXT, *REASONING, *ARGUMENTS, "completed"],
        ),
        (FINAL, {"max_output_tokens": 16}, [*REASONING, "incomplete"]),
        # A call that is cut has no `arguments.done`, which many clients take as leave to run it.
        (CALL, {"tools": [TIDE], "max_output_tokens": CUT}, [*REASONING, *ARGUMENTS[:2], ARGUMENTS[3], "incomplete"]),
        ("<|return|>", {}, ["completed"]),
    ],
)
async def test_the_order_of_events(serve: Serve, sampled: str, options: dict[str, Any], expected: list[str]) -> None:
    async with serve(sampled) as server:
        events = await ask_stream(server, **options)
        whole = await ask_whole(server, **options)
    assert names(events) == ["created", "in_progress", *expected]
    assert without_ids(events[-1]["response"]) == without_ids(whole), "both are views of the same"
    assert {event["response"]["id"] for event in events if "response" in event} == {events[0]["response"]["id"]}
    added = [event for event in events if event["type"].endswith("item.added")]
    done = [event for event in events if event["type"].endswith("item.done")]
    assert [event["output_index"] for event in added] == [event["output_index"] for event in done]
    assert [event["output_index"] for event in added] == list(range(len(added)))
    assert [event["item"] for event in done] == events[-1]["response"]["output"]
    for index, item in enumerate(event["item"] for event in added):
        ids = {event["item_id"] for event in events if "item_id" in event and event["output_index"] == index}
        assert ids <= {item["id"]}
        assert item["status"] == "in_progress"


async def test_deltas_add_up_to_what_is_done(serve: Serve) -> None:
    async with serve(FINAL) as server:
        events = await ask_stream(server)
    for kind, key in (("output_text", "text"), ("reasoning_text", "text")):
        deltas = "".join(e["delta"] for e in events if e["type"] == f"response.{kind}.delta")
        (done,) = [e for e in events if e["type"] == f"response.{kind}.done"]
        assert deltas == done[key] != ""


async def test_what_is_cut_is_incomplete(serve: Serve) -> None:
    async with serve(CALL) as server:
        body = await ask_whole(server, tools=[TIDE], max_output_tokens=CUT)
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    reasoning, call = body["output"]
    assert (reasoning["status"], call["status"]) == ("completed", "incomplete")
    assert call["type"] == "function_call"
    assert body["usage"]["output_tokens"] == CUT


async def test_logprobs(serve: Serve) -> None:
    async with serve(FINAL) as server:
        body = await ask_whole(server, include=["message.output_text.logprobs"], top_logprobs=2)
        events = await ask_stream(server, include=["message.output_text.logprobs"])
        plain = await ask_whole(server)
    (part,) = body["output"][1]["content"]
    assert "".join(entry["token"] for entry in part["logprobs"]) == "High at 4."
    assert [len(entry["top_logprobs"]) for entry in part["logprobs"]] == [2] * len(part["logprobs"])
    streamed = [e for event in events if event["type"] == "response.output_text.delta" for e in event["logprobs"]]
    assert "".join(entry["token"] for entry in streamed) == "High at 4."
    assert plain["output"][1]["content"][0]["logprobs"] == []


async def test_a_warm_up_with_an_empty_input(serve: Serve) -> None:
    async with serve(FINAL) as server:
        body = await ask_whole(server, input="", max_output_tokens=1)
        nothing = await ask(server, input=[])
    assert body["status"] == "incomplete"
    assert (nothing.status_code, nothing.json()["error"]["param"]) == (400, "input")


async def test_a_request_as_codex_sends_it(serve: Serve, tokenizer: Tokenizer) -> None:
    parts = [{"type": "input_text", "text": "A "}, {"type": "input_text", "text": "B"}]
    body = {
        "store": False,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "key",
        "client_metadata": {"a": "b"},
        "input": [
            {"type": "message", "id": "msg_1", "role": "developer", "content": parts},
            {"type": "message", "id": "msg_2", "role": "developer", "content": parts},
            {"type": "message", "id": "msg_3", "role": "user", "content": parts},
        ],
        "tools": [
            TIDE | {"description": "x" * 40_000},
            {"type": "namespace", "name": "agents", "tools": [TIDE]},
            {"type": "web_search", "external_web_access": False},
        ],
    }
    async with serve(FINAL, max_model_len=100_000) as server:
        response = await ask(server, stream=True, **body)
    assert response.status_code == 200
    assert response.headers["x-rose-ignored-fields"] == "tools.web_search"
    prompt = tokenizer.decode(server.engine.submitted[0].prompt_token_ids)
    assert "A B\n\nA B" in prompt
    assert "namespace functions" in prompt
    assert "type agents__tide = " in prompt


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"not": {}}}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "wind"}, "tools": [TIDE]}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 9}, "temperature"),
        ({"top_logprobs": 99}, "top_logprobs"),
        ({"input": 7}, "input"),
        ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "lost", "output": "x"}]}, "input"),
        ({"input": "tide " * 9000}, "input"),
        ({"max_output_tokens": 5000}, "max_output_tokens"),
        ({"previous_response_id": "resp_lost"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"truncation": "middle"}, "truncation"),
        ({"background": True, "store": False}, "background"),
        ({"max_tool_calls": -1}, "max_tool_calls"),
    ],
)
async def test_what_is_refused_names_its_field(serve: Serve, options: dict[str, Any], param: str) -> None:
    async with serve(FINAL) as server:
        for stream in ({}, {"stream": True} if "background" not in options else {}):
            response = await ask(server, **options | stream)
            assert response.status_code == 400, response.text
            assert response.json()["error"]["param"] == param


async def test_a_prompt_too_long_says_so(serve: Serve) -> None:
    async with serve(FINAL) as server:
        error = (await ask(server, input="tide " * 9000, stream=True)).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "4096 tokens" in error["message"]


async def test_failures(serve: Serve, tokenizer: Tokenizer) -> None:
    half = by_token(tokenizer.encode_with_special("<|channel|>final<|message|>High"))
    async with serve(script=lambda _: [*half, EngineDead("killed")]) as server:
        *_, done, last = await ask_stream(server)
    assert done["item"]["status"] == "incomplete"
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error"
    assert last["response"]["output"][0]["content"][0]["text"] == "High"
    failure = RequestFailure(message="out of range", param="max_tokens", code="invalid_value")
    async with serve(script=lambda _: [failure]) as server:
        refused = await ask(server, stream=True)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_output_tokens")
    async with serve(script=lambda _: [*half, RequestFailure(message="bad", code="model_error")]) as server:
        assert (await ask(server)).status_code == 500
        assert (await ask_stream(server))[-1]["response"]["error"] == {"code": "server_error", "message": "bad"}


async def test_unknown_fields_and_items_are_reported(serve: Serve) -> None:
    items = [{"type": "mcp_call", "id": "mcp_1"}, {"role": "user", "content": "tide?"}]
    async with serve(FINAL) as server:
        response = await ask(server, input=items, colour="red")
    assert response.headers["x-rose-ignored-fields"] == "colour, input.mcp_call"
    async with serve(FINAL, strict_fields=True) as server:
        assert (await ask(server, colour="red")).json()["error"]["param"] == "colour"


async def test_tool_choice_none_hides_the_tools(serve: Serve, tokenizer: Tokenizer) -> None:
    async with serve(FINAL) as server:
        body = await ask_whole(server, tools=[TIDE], tool_choice="none", reasoning={"effort": "xhigh"})
    prompt = tokenizer.decode(server.engine.submitted[0].prompt_token_ids)
    assert "namespace functions" not in prompt
    assert "Reasoning: high" in prompt
    assert body["tool_choice"] == "none"
    assert body["tools"][0]["name"] == "tide"


async def test_256_streams_at_once_keep_their_events_apart_and_in_order(serve: Serve, tokenizer: Tokenizer) -> None:
    def script(request: AddRequest) -> Any:
        (number,) = re.findall(r"number (\d+)\.", tokenizer.decode(request.prompt_token_ids))
        return by_token(tokenizer.encode_with_special(f"<|channel|>final<|message|>This is {number}.<|return|>"))

    async with serve(script=script) as server:
        answers = await asyncio.gather(*(ask(server, stream=True, input=f"number {i}.") for i in range(256)))
        stored = [(await server.http.get(f"/v1/responses/{i}")).status_code for i in response_ids(answers)]
    for i, answer in enumerate(answers):
        events = [json.loads(data) for data in re.findall(r"^data: (.*)$", answer.text, re.MULTILINE)]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta") == f"This is {i}."
    assert len(stored) == 256
    assert set(stored) == {200}


def response_ids(answers: list[httpx.Response]) -> set[str]:
    return {re.findall(r'"id":"(resp_[0-9a-f]+)"', answer.text)[0] for answer in answers}
