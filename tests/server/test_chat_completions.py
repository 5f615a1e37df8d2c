"""`/v1/chat/completions`, whole and streamed, over a scripted engine."""

import json
import os
import re
from pathlib import Path

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from rose.chat.tokenizer import Tokenizer
from rose.engine.messages import RequestFailure
from rose.errors import EngineDead
from tests.fakes import by_token
from tests.server.conftest import MODEL, Serve, read_stream

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parent.parent / "golden" / "server"
THINK = "<|channel|>analysis<|message|>Need the tide.<|end|><|start|>assistant"
FINAL = THINK + "<|channel|>final<|message|>High at 4.<|return|>"
CALL = THINK + '<|channel|>commentary to=functions.tide <|constrain|>json<|message|>{"port":"Oban"}<|call|>'
TIDE = {"type": "function", "function": {"name": "tide", "parameters": {"type": "object"}}}


async def test_a_whole_answer(serve: Serve) -> None:
    async with serve(FINAL) as server:
        response = await server.chat(model=MODEL)
    body = response.json()
    ChatCompletion.model_validate(body, strict=True)
    assert body["object"] == "chat.completion"
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{32}", body["id"])
    assert body["model"] == MODEL
    assert body["system_fingerprint"].startswith("rose-")
    (choice,) = body["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "High at 4.",
        "refusal": None,
        "reasoning": "Need the tide.",
        "reasoning_content": "Need the tide.",
    }
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] // 2
    assert response.headers["x-request-id"]
    assert "x-rose-ignored-fields" not in response.headers


async def test_a_stream_adds_up_to_the_whole_answer(serve: Serve) -> None:
    async with serve(FINAL) as server:
        whole = (await server.chat()).json()
        stream = read_stream(await server.chat(stream=True, stream_options={"include_usage": True}))
    assert stream.is_done
    message = whole["choices"][0]["message"]
    assert stream.text("content") == message["content"]
    assert stream.text("reasoning") == stream.text("reasoning_content") == message["reasoning"]
    assert stream.finish_reasons() == ["stop"]
    assert stream.chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert stream.chunks[-1]["choices"] == []
    assert stream.chunks[-1]["usage"] == whole["usage"]
    assert not any("usage" in chunk for chunk in stream.chunks[:-1])
    assert len({chunk["id"] for chunk in stream.chunks}) == 1
    for chunk in stream.chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)


async def test_no_usage_unless_asked_for(serve: Serve) -> None:
    async with serve(FINAL) as server:
        stream = read_stream(await server.chat(stream=True))
        counted = read_stream(await server.chat(stream=True, stream_options={"continuous_usage_stats": True}))
    assert all(chunk["choices"] and "usage" not in chunk for chunk in stream.chunks)
    counts = [chunk["usage"]["completion_tokens"] for chunk in counted.chunks]
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


@pytest.mark.parametrize("name", ["answer", "tool_call", "length"])
async def test_golden_streams(serve: Serve, name: str) -> None:
    """The bytes that clients get, ids, times and prompt counts aside. `WRITE_GOLDEN=1` writes them anew."""
    sampled = {"answer": FINAL, "tool_call": CALL, "length": "<|channel|>final<|message|>High at"}[name]
    options = {"stream_options": {"include_usage": True}, "max_completion_tokens": 64 if name != "length" else 12}
    async with serve(sampled) as server:
        response = await server.chat(stream=True, tools=[TIDE], **options)
    text = re.sub(r"(chatcmpl|call)[-_][0-9a-f]+", r"\1-ID", response.text)
    text = re.sub(r'"created":\d+', '"created":0', text)
    text = re.sub(r'"rose-[0-9.]+-', '"rose-VERSION-', text)
    text = re.sub(r'"prompt_tokens":\d+,', '"prompt_tokens":0,', text)
    text = re.sub(r'"(total|cached)_tokens":\d+', r'"\1_tokens":0', text)
    golden = GOLDEN / f"chat_stream_{name}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


async def test_a_tool_call(serve: Serve) -> None:
    async with serve(CALL) as server:
        whole = (await server.chat(tools=[TIDE], tool_choice="auto")).json()["choices"][0]
        stream = read_stream(await server.chat(tools=[TIDE], stream=True))
    assert whole["finish_reason"] == "tool_calls"
    assert whole["message"]["content"] is None
    (call,) = whole["message"]["tool_calls"]
    assert re.fullmatch("call_[0-9a-f]{24}", call["id"])
    assert call["function"] == {"name": "tide", "arguments": '{"port":"Oban"}'}
    assert stream.finish_reasons() == ["tool_calls"]
    (streamed,) = stream.tool_calls()
    assert (streamed["name"], streamed["arguments"]) == ("tide", '{"port":"Oban"}')
    pieces = [c["delta"]["tool_calls"][0] for c in stream.choices() if "tool_calls" in c["delta"]]
    assert len(pieces) > 2
    assert all("id" not in piece and "name" not in piece["function"] for piece in pieces[1:])


async def test_the_conversation_that_is_rendered(serve: Serve, tokenizer: Tokenizer) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "No "}, {"type": "input_text", "text": "jokes."}]},
        {"role": "user", "content": "tide?"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Need the tide.",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "tide", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "high at 4"},
    ]
    async with serve(FINAL) as server:
        await server.chat(messages=messages, tools=[TIDE], reasoning_effort="xhigh")
        prompt = tokenizer.decode(server.engine.submitted[0].prompt_token_ids, keep_special=True)
    for part in ("Be brief.", "No jokes.", "tide?", "Need the tide.", "high at 4", "Reasoning: high", "2026-01-31"):
        assert part in prompt
    assert prompt.endswith("<|start|>assistant")


async def test_tool_choice_none_leaves_the_tools_out(serve: Serve, tokenizer: Tokenizer) -> None:
    async with serve(FINAL) as server:
        await server.chat(tools=[TIDE], tool_choice="none")
        assert "namespace" not in tokenizer.decode(server.engine.submitted[0].prompt_token_ids)


async def test_sampling_fields_reach_the_engine(serve: Serve) -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "seed": 7,
        "min_tokens": 2,
    }
    async with serve(FINAL) as server:
        extra = {"max_tokens": 5, "max_completion_tokens": 30, "logit_bias": {"42": -100}, "stop_token_ids": [9]}
        await server.chat(**fields, **extra, ignore_eos=True, logprobs=True, top_logprobs=3)
        await server.chat(top_k=-1, temperature=None)
        params, defaults = (request.sampling_params for request in server.engine.submitted)
    assert {name: getattr(params, name) for name in fields} == fields
    assert (params.max_tokens, params.logit_bias, params.logprobs, params.ignore_eos) == (30, {42: -100.0}, 3, True)
    assert 9 in params.stop_token_ids
    assert (defaults.temperature, defaults.top_p, defaults.top_k, defaults.max_tokens) == (1.0, 1.0, 0, None)
    assert len(defaults.stop_token_ids) == 3


async def test_several_completions(serve: Serve) -> None:
    async with serve(FINAL) as server:
        whole = (await server.chat(n=3)).json()
        stream = read_stream(await server.chat(n=3, stream=True))
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in whole["choices"]} == {"High at 4."}
    for index in range(3):
        assert stream.text("content", index) == "High at 4."
        assert stream.finish_reasons(index) == ["stop"]


async def test_logprobs_are_of_content_tokens(serve: Serve, tokenizer: Tokenizer) -> None:
    async with serve(THINK + "<|channel|>final<|message|>é 4.<|return|>") as server:
        whole = (await server.chat(logprobs=True, top_logprobs=2)).json()["choices"][0]["logprobs"]["content"]
        stream = read_stream(await server.chat(logprobs=True, top_logprobs=2, stream=True))
    raw = b"".join(bytes(entry["bytes"]) for entry in whole)
    assert raw.decode() == "é 4."
    assert len(whole) == len(tokenizer.encode("é 4."))
    assert [len(entry["top_logprobs"]) for entry in whole] == [2] * len(whole)
    assert whole[0]["top_logprobs"][1]["logprob"] == -9999.0, "JSON has no infinity"
    streamed = [entry for choice in stream.choices() for entry in (choice["logprobs"] or {"content": []})["content"]]
    assert streamed == whole


async def test_stop_strings_end_the_request_in_the_engine(serve: Serve) -> None:
    async with serve(THINK + "<|channel|>final<|message|>High at 4. Low at 10.<|return|>") as server:
        for stop in (" Low", ["nowhere", " Low"]):
            whole = (await server.chat(stop=stop)).json()
            assert whole["choices"][0]["message"]["content"] == "High at 4."
            assert whole["choices"][0]["finish_reason"] == "stop"
        stream = read_stream(await server.chat(stop=" Low", stream=True))
        assert stream.text("content") == "High at 4."
        assert stream.finish_reasons() == ["stop"]
        assert [reason for _, _, reason in server.engine.aborted if reason == "stop"] == ["stop"] * 3


async def test_length(serve: Serve) -> None:
    async with serve("<|channel|>final<|message|>High at 4. Low at 10.") as server:
        body = (await server.chat(max_tokens=12)).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("both", {"reasoning", "reasoning_content"}),
        ("reasoning", {"reasoning"}),
        ("reasoning_content", {"reasoning_content"}),
    ],
)
async def test_the_reasoning_field_is_a_setting(serve: Serve, setting: str, names: set[str]) -> None:
    async with serve(FINAL, reasoning_field=setting) as server:
        message = (await server.chat()).json()["choices"][0]["message"]
        stream = read_stream(await server.chat(stream=True))
    assert {name for name in message if name.startswith("reasoning")} == names
    streamed = {name for choice in stream.choices() for name in choice["delta"] if name.startswith("reasoning")}
    assert streamed == names


async def test_reasoning_can_be_left_out(serve: Serve) -> None:
    async with serve(FINAL) as server:
        body = (await server.chat(include_reasoning=False)).json()
        stream = read_stream(await server.chat(include_reasoning=False, stream=True, return_token_ids=True))
    assert "reasoning" not in body["choices"][0]["message"]
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    assert stream.text("reasoning") == ""
    ids = [i for choice in stream.choices() for i in choice.get("token_ids") or ()]
    assert len(ids) == body["usage"]["completion_tokens"], "ids of unseen tokens are told all the same"


async def test_token_ids_can_be_returned(serve: Serve, tokenizer: Tokenizer) -> None:
    async with serve(FINAL) as server:
        whole = (await server.chat(return_token_ids=True)).json()
        stream = read_stream(await server.chat(return_token_ids=True, stream=True))
    ids = tokenizer.encode_with_special(FINAL)
    assert whole["choices"][0]["token_ids"] == ids
    assert [i for choice in stream.choices() for i in choice.get("token_ids") or ()] == ids
    assert whole["prompt_token_ids"] == stream.chunks[0]["prompt_token_ids"]
    assert "prompt_token_ids" not in stream.chunks[1]


async def test_request_ids(serve: Serve) -> None:
    async with serve(FINAL) as server:
        own = await server.chat(headers={"x-request-id": "abc-1"}, request_id="from-body")
        from_body = await server.chat(request_id="from-body")
        unsound = await server.chat(headers={"x-request-id": "a" * 200})
        twins = [await server.chat(headers={"x-request-id": "same"}) for _ in range(2)]
    assert own.headers["x-request-id"] == "abc-1"
    assert from_body.headers["x-request-id"] == "from-body"
    assert re.fullmatch("[0-9a-f]{32}", unsound.headers["x-request-id"])
    assert [twin.status_code for twin in twins] == [200, 200]


async def test_template_kwargs(serve: Serve, tokenizer: Tokenizer) -> None:
    kwargs = {"reasoning_effort": "low", "model_identity": "You are a tide table.", "enable_thinking": True}
    async with serve(FINAL) as server:
        response = await server.chat(chat_template_kwargs=kwargs)
        prompt = tokenizer.decode(server.engine.submitted[0].prompt_token_ids)
    assert "You are a tide table." in prompt
    assert "Reasoning: low" in prompt
    assert response.headers["x-rose-ignored-fields"] == "chat_template_kwargs.enable_thinking"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_is_too_long_is_a_400_even_for_a_stream(serve: Serve, stream: bool) -> None:
    async with serve(FINAL, max_model_len=512) as server:
        response = await server.chat(messages=[{"role": "user", "content": "tide " * 600}], stream=stream)
        beyond = await server.chat(max_completion_tokens=100_000, stream=stream)
    for refused, param in ((response, "messages"), (beyond, "max_completion_tokens")):
        error = refused.json()["error"]
        assert refused.status_code == 400
        assert (error["code"], error["param"], error["type"]) == (
            "context_length_exceeded",
            param,
            "invalid_request_error",
        )
        assert "512" in error["message"]


async def test_the_engines_refusal_of_a_stream_has_its_own_status(serve: Serve) -> None:
    failure = RequestFailure(message="logit_bias has token id 999999", param="logit_bias", code="invalid_token_id")
    async with serve(script=lambda _: [failure]) as server:
        response = await server.chat(stream=True)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "logit_bias"


@pytest.mark.parametrize(
    ("end", "status", "code"),
    [
        (EngineDead("killed"), 503, "engine_dead"),
        (RequestFailure(message="nan in the logits", code="model_error"), 500, "model_error"),
        (RequestFailure(message="no vocabulary", code="vocabulary_error"), 500, "vocabulary_error"),
        (RequestFailure(message="no room", code="kv_cache_exhausted"), 400, "kv_cache_exhausted"),
    ],
)
async def test_failures_in_the_middle(
    serve: Serve, tokenizer: Tokenizer, end: EngineDead | RequestFailure, status: int, code: str
) -> None:
    steps = [*by_token(tokenizer.encode_with_special("<|channel|>final<|message|>High")), end]
    async with serve(script=lambda _: steps) as server:
        stream = read_stream(await server.chat(stream=True, stream_options={"include_usage": True}))
    assert stream.text("content") == "High"
    assert stream.is_done
    assert stream.finish_reasons() == []
    (error,) = stream.errors
    assert error["code"] == code
    async with serve(script=lambda _: steps) as server:
        response = await server.chat()
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


async def test_a_silent_stream_is_kept_alive(serve: Serve, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_with_special(FINAL)
    steps = [ids[:12], 0.3, ids[12:]]
    async with serve(script=lambda _: steps, keep_alive_s=0.05) as server:
        response = await server.chat(stream=True)
    assert response.text.count(": keep-alive\n\n") >= 2
    assert read_stream(response).text("content") == "High at 4."


async def test_a_stream_starts_although_the_engine_takes_its_time(serve: Serve, tokenizer: Tokenizer) -> None:
    steps = [0.2, tokenizer.encode_with_special(FINAL)]
    async with serve(script=lambda _: steps, first_output_wait_s=0.02, keep_alive_s=0.05) as server:
        response = await server.chat(stream=True)
    assert response.text.index(": keep-alive") < response.text.index("High")
    assert read_stream(response).text("content") == "High at 4."


async def test_json_strings_with_half_a_surrogate_pair(serve: Serve) -> None:
    async with serve(FINAL) as server:
        raw = json.dumps({"messages": [{"role": "user", "content": "\ud800"}]})
        response = await server.http.post("/v1/chat/completions", content=raw)
    assert response.status_code in (200, 400)
