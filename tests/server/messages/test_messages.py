"""`/v1/messages` over a scripted engine."""

import json
from typing import Any

import httpx
import pytest

from rose.chat.tokenizer import Tokenizer
from rose.errors import EngineDead
from tests.fakes import by_token
from tests.server.conftest import MODEL, Serve, Server

pytestmark = pytest.mark.anyio

THINK = "<|channel|>analysis<|message|>Need the tide.<|end|><|start|>assistant"
FINAL = THINK + "<|channel|>final<|message|>High at 4.<|return|>"
CALL = THINK + '<|channel|>commentary to=functions.tide <|constrain|>json<|message|>{"port":"Oban"}<|call|>'
TIDE = {"name": "tide", "description": "The tide.", "input_schema": {"type": "object"}}
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 2048}}
QUESTION = {"role": "user", "content": "tide?"}


async def ask(server: Server, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    body = {"model": MODEL, "max_tokens": 100, "messages": [QUESTION]} | body
    return await server.http.post("/v1/messages", json=body, headers=headers)


async def ask_whole(server: Server, **body: Any) -> dict[str, Any]:
    response = await ask(server, **body)
    assert response.status_code == 200, response.text
    return response.json()


async def ask_stream(server: Server, **body: Any) -> list[dict[str, Any]]:
    response = await ask(server, stream=True, **body)
    assert response.status_code == 200, response.text
    events = []
    for frame in response.text.strip().split("\n\n"):
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def accumulate(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of a stream, after Anthropic's documentation."""
    assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
    message: dict[str, Any] = events[0]["message"]
    texts: list[str] = []
    for event in events[1:-1]:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
                texts = []
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                match delta["type"]:
                    case "text_delta":
                        block["text"] += delta["text"]
                    case "thinking_delta":
                        block["thinking"] += delta["thinking"]
                    case "signature_delta":
                        block["signature"] = delta["signature"]
                    case "input_json_delta":
                        texts.append(delta["partial_json"])
            case "content_block_stop":
                if texts:
                    message["content"][event["index"]]["input"] = json.loads("".join(texts))
                    texts = []
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
            case other:
                assert other == "ping"
    return message


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    content = [{key: value for key, value in block.items() if key != "id"} for block in message["content"]]
    return message | {"id": "", "content": content}


@pytest.mark.parametrize("options", [{}, THINKING])
@pytest.mark.parametrize("sampled", [FINAL, CALL])
async def test_a_stream_adds_up_to_the_whole(serve: Serve, sampled: str, options: dict[str, Any]) -> None:
    async with serve(sampled) as server:
        whole = await ask_whole(server, tools=[TIDE], **options)
        streamed = accumulate(await ask_stream(server, tools=[TIDE], **options))
    assert without_ids(streamed) == without_ids(whole)
    assert (whole["type"], whole["role"], whole["model"]) == ("message", "assistant", MODEL)
    *before, last = whole["content"]
    assert [block["type"] for block in before] == (["thinking"] if options else [])
    if options:
        assert before[0]["thinking"] == "Need the tide."
        assert before[0]["signature"], "clients drop thinking that is not signed"
    if sampled == FINAL:
        assert (last["type"], last["text"], whole["stop_reason"]) == ("text", "High at 4.", "end_turn")
    else:
        assert (last["type"], last["name"], last["input"]) == ("tool_use", "tide", {"port": "Oban"})
        assert whole["stop_reason"] == "tool_use"
    usage = whole["usage"]
    assert usage["cache_read_input_tokens"] > 0
    assert usage["output_tokens"] > 0


async def test_a_tool_loop(serve: Serve, tokenizer: Tokenizer) -> None:
    async with serve(CALL) as server:
        first = await ask_whole(server, tools=[TIDE], system="Be brief.", **THINKING)
        call = first["content"][-1]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "at 4"}]}
        turns = [
            QUESTION,
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": [result, {"type": "text", "text": "well?"}]},
        ]
        await ask_whole(
            server, tools=[TIDE], system=[{"type": "text", "text": "Be brief."}], messages=turns, **THINKING
        )
    before, after = (tokenizer.decode(a.prompt_token_ids, keep_special=True) for a in server.engine.submitted)
    assert after.startswith(before)
    assert after.removeprefix(before) == (
        "<|channel|>analysis<|message|>Need the tide.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.tide <|constrain|>json<|message|>{"port":"Oban"}<|call|>'
        "<|start|>functions.tide to=assistant<|channel|>commentary<|message|>at 4<|end|>"
        "<|start|>user<|message|>well?<|end|><|start|>assistant"
    )


async def test_why_it_stopped(serve: Serve) -> None:
    async with serve(FINAL, max_model_len=400) as server:
        cut = await ask_whole(server, max_tokens=20)
        stopped = await ask_whole(server, stop_sequences=["never", " at"])
        await ask_whole(server, max_tokens=32_000)
    assert cut["stop_reason"] == "max_tokens"
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", " at")
    assert stopped["content"][-1]["text"] == "High"
    added = server.engine.submitted[-1]
    assert added.sampling_params.max_tokens == 400 - len(added.prompt_token_ids)
    async with serve(FINAL, max_model_len=len(added.prompt_token_ids) + 15) as server:
        full = await ask_whole(server, max_tokens=32_000)
    assert full["stop_reason"] == "model_context_window_exceeded"


async def test_a_call_that_is_cut_or_no_json(serve: Serve, tokenizer: Tokenizer) -> None:
    num_cut = len(tokenizer.encode_with_special(CALL.split('"Oban')[0]))
    async with serve(CALL) as server:
        cut = await ask_whole(server, tools=[TIDE], max_tokens=num_cut)
    assert [block["type"] for block in cut["content"]] == ["text"]
    assert cut["stop_reason"] == "max_tokens"
    async with serve(CALL.replace('{"port":"Oban"}', "Oban")) as server:
        odd = await ask_whole(server, tools=[TIDE])
    assert odd["content"][0]["input"] == {"INVALID_JSON": "Oban"}


@pytest.mark.parametrize(
    ("options", "effort"),
    [
        ({}, "medium"),
        ({"thinking": {"type": "disabled"}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 10_000}}, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 32_000}}, "high"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "high"),
    ],
)
async def test_effort(serve: Serve, tokenizer: Tokenizer, options: dict[str, Any], effort: str) -> None:
    async with serve(FINAL) as server:
        await ask_whole(server, **options)
    assert f"Reasoning: {effort}" in tokenizer.decode(server.engine.submitted[0].prompt_token_ids)


async def test_counting_tokens(serve: Serve) -> None:
    async with serve(FINAL) as server:
        body = {"messages": [QUESTION], "tools": [TIDE], "system": "Be brief."}
        response = await server.http.post("/v1/messages/count_tokens", json=body)
        usage = (await ask_whole(server, **body))["usage"]
    assert response.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [QUESTION, {"role": "assistant", "content": "High"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": "tide " * 9000}]}, "9"),
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": 7}, "temperature"),
        ({"stop_sequences": [""]}, "stop"),
        ({"tool_choice": {"type": "tool"}, "tools": [TIDE]}, "tool_choice.name"),
        ({"tool_choice": {"type": "some"}, "tools": [TIDE]}, "tool_choice.type"),
        ({"output_config": {"effort": "much"}}, "output_config.effort"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ],
)
async def test_errors_have_anthropics_shape(serve: Serve, options: dict[str, Any], named: str) -> None:
    async with serve(FINAL) as server:
        for stream in (False, True):
            response = await ask(server, stream=stream, **options)
            body = response.json()
            assert response.status_code == 400, response.text
            assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
            assert named in body["error"]["message"]
            assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]


async def test_keys_and_other_errors(serve: Serve, tokenizer: Tokenizer) -> None:
    async with serve(FINAL, api_keys=("sk-good",)) as server:
        assert (await ask(server, {"x-api-key": "sk-good"})).status_code == 200
        assert (await ask(server, {"authorization": "Bearer sk-good"})).status_code == 200
        refused = await ask(server, {"x-api-key": "sk-bad"})
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        missing = await ask(server, {"x-api-key": "sk-good"}, model="gpt-9")
        assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    half = by_token(tokenizer.encode_with_special("<|channel|>final<|message|>High"))
    async with serve(script=lambda _: [*half, EngineDead("killed")]) as server:
        assert (await ask_stream(server))[-1]["error"]["type"] == "overloaded_error"


async def test_what_is_ignored_is_reported(serve: Serve) -> None:
    tools = [TIDE, {"type": "web_search_20250305", "name": "web_search"}]
    async with serve(FINAL) as server:
        response = await ask(server, tools=tools, metadata={"user_id": "a"}, context_management={})
    assert response.headers["x-rose-ignored-fields"] == "context_management, tools.web_search_20250305"
    assert response.headers["request-id"] == response.headers["x-request-id"]
