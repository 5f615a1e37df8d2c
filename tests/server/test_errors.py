"""Every refusal has a true status and OpenAI's error shape, and names the field at fault."""

import re
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect

from rose.chat.tokenizer import Tokenizer
from rose.server.chat_completions.kinds import CHAT_FIELDS
from rose.server.chat_completions.schema import ChatCompletionRequest
from rose.server.errors import to_api_error
from tests.server.conftest import MODEL, Serve

pytestmark = pytest.mark.anyio

HARMLESS_FIELDS, UNSUPPORTED_FIELDS = CHAT_FIELDS.harmless, CHAT_FIELDS.unsupported
URL = "/v1/chat/completions"


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert response.headers["x-request-id"]
    return body["error"]


IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
BAD_FIELDS = [
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": None}, "messages", "invalid_type"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "missing_required_parameter"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_type"),
    ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type", None),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text", None),
    (
        {"messages": [{"role": "user", "content": [IMAGE]}]},
        "messages[0].content[0].type",
        "unsupported_parameter",
    ),
    ({"stream": "true"}, "stream", "invalid_type"),
    ({"temperature": "hot"}, "temperature", "invalid_type"),
    ({"temperature": 2.5}, "temperature", None),
    ({"temperature": float("nan")}, "temperature", None),
    ({"top_p": 0}, "top_p", None),
    ({"n": 0}, "n", None),
    ({"n": 1.5}, "n", "invalid_type"),
    ({"max_tokens": 0}, "max_tokens", None),
    ({"max_completion_tokens": 0}, "max_completion_tokens", None),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", None),
    ({"max_tokens": 10**30}, "max_tokens", None),
    ({"stop_token_ids": [10**30]}, "stop_token_ids", None),
    ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
    ({"logit_bias": {"abc": 1}}, "logit_bias.abc[key]", "invalid_type"),
    ({"logit_bias": []}, "logit_bias", "invalid_type"),
    ({"stop": 5}, "stop", "invalid_type"),
    ({"stop": ["a", 5]}, "stop[1]", "invalid_type"),
    ({"stop": ""}, "stop", "invalid_value"),
    ({"stop": ["x"] * 33}, "stop", None),
    ({"reasoning_effort": "huge"}, "reasoning_effort", "invalid_value"),
    ({"chat_template_kwargs": {"reasoning_effort": 3}}, "chat_template_kwargs.reasoning_effort", "invalid_type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing_required_parameter"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        "response_format.json_schema.schema",
        "missing_required_parameter",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "string", "not": {}}}}},
        "response_format",
        "unsupported_grammar",
    ),
    ({"guided_json": {"type": "string", "not": {}}}, "guided_json", "unsupported_grammar"),
    ({"guided_json": "no schema"}, "guided_json", "invalid_value"),
    ({"guided_json": 3}, "guided_json", "invalid_type"),
    ({"guided_regex": "a(?=b)"}, "guided_regex", "unsupported_grammar"),
    ({"guided_choice": []}, "guided_choice", "invalid_type"),
    ({"guided_grammar": "start: <|call|>"}, "guided_grammar", "unsupported_grammar"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "invalid_value"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "invalid_value"),
    ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex", "invalid_type"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "unsupported_parameter"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_parameter"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "invalid_value"),
    ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "invalid_value"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.name", "missing_required_parameter"),
    ({"tool_choice": {"type": "custom", "name": "f"}}, "tool_choice.type", "unsupported_parameter"),
    ({"tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.tools", "invalid_value"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"not": {}}}}]},
        "tools[0]",
        "unsupported_grammar",
    ),
    ({"tool_choice": "maybe"}, "tool_choice", "invalid_value"),
    ({"tool_choice": 3}, "tool_choice", "invalid_type"),
    ({"model": 3}, "model", "invalid_type"),
]


@pytest.mark.parametrize(("body", "param", "code"), BAD_FIELDS, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_bad_field_is_named(
    serve: Serve, body: dict[str, Any], param: str, code: str | None, stream: bool
) -> None:
    async with serve() as server:
        if body.get("temperature") != body.get("temperature"):
            raw = '{"messages":[{"role":"user","content":"x"}],"temperature":NaN}'
            response = await server.http.post(URL, content=raw)
        else:
            response = await server.chat(**{"stream": stream} | body)
        assert not server.engine.submitted
    error = error_of(response, 400)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    if code is not None:
        assert error["code"] == code


async def test_all_faults_are_told_at_once(serve: Serve) -> None:
    async with serve() as server:
        error = error_of(await server.chat(temperature="hot", n="two", stop=5), 400)
    for name in ("temperature", "n:", "stop"):
        assert name in error["message"]


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (r"a\ud83d", "a\ufffd"),
        (r"\uDE00b", "\ufffdb"),
        (r"\ud83d\ud83d\ude00\ude00", "\ufffd\U0001f600\ufffd"),
        (r"\\ud83d \n\\\ud83d", "\\ud83d \n\\\ufffd"),
    ],
)
async def test_half_a_surrogate_pair_is_no_bad_request(
    serve: Serve, tokenizer: Tokenizer, escaped: str, text: str
) -> None:
    """JavaScript clients send such, once they have cut a string inside a character, with every turn."""
    async with serve() as server:
        raw = f'{{"messages":[{{"role":"user","content":"{escaped}"}}]}}'
        assert (await server.http.post(URL, content=raw)).status_code == 200
        prompt = tokenizer.decode(server.engine.submitted[0].prompt_token_ids, keep_special=True)
    assert prompt.endswith(f"<|message|>{text}<|end|><|start|>assistant")


def test_a_client_that_goes_away_is_no_fault_of_the_servers(caplog: pytest.LogCaptureFixture) -> None:
    assert to_api_error(ClientDisconnect()).status == 499
    assert not caplog.records


async def test_null_counts_as_left_out_inside_messages_too(serve: Serve) -> None:
    call = {"id": None, "type": None, "function": {"name": "f", "arguments": None}}
    async with serve() as server:
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
        assert (await server.chat(messages=messages, logprobs=False, top_logprobs=0)).status_code == 200


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"{", "invalid_json"),
        (b'{"model": "\\ud83d"', "invalid_json"),
        (b"", "invalid_json"),
        (b"\xff", "invalid_json"),
        (b"[1]", "invalid_type"),
    ],
)
async def test_what_is_no_json_object(serve: Serve, content: bytes, code: str) -> None:
    async with serve() as server:
        error = error_of(await server.http.post(URL, content=content), 400)
    assert (error["param"], error["code"]) == (None, code)


async def test_routes_that_are_not_there(serve: Serve) -> None:
    async with serve() as server:
        assert error_of(await server.http.get("/v1/nothing"), 404)["code"] == "not_found"
        response = await server.http.get(URL)
        assert error_of(response, 405)["code"] == "method_not_allowed"
        assert response.headers["allow"] == "POST"


async def test_a_model_that_is_not_served(serve: Serve) -> None:
    async with serve() as server:
        error = error_of(await server.chat(model="gpt-9"), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert MODEL in error["message"]
        assert (await server.chat(model="an/alias")).json()["model"] == "an/alias"


async def test_keys(serve: Serve) -> None:
    async with serve(api_keys=("sk-one", "sk-zwei-ü")) as server:
        for headers in (None, {"authorization": "Bearer sk-three"}, {"authorization": "sk-one"}):
            error = error_of(await server.chat(headers=headers), 401)
            assert error["code"] == "invalid_api_key"
            assert "`Authorization: Bearer KEY` or `x-api-key: KEY`" in error["message"]
        assert error_of(await server.http.post("/tokenize", json={}), 401)
        for key in ("sk-one", "sk-zwei-ü"):
            assert (await server.chat(headers={"authorization": f"Bearer {key}".encode()})).status_code == 200
        for path in ("/health", "/metrics", "/version"):
            assert (await server.http.get(path)).status_code == 200


async def test_a_body_over_the_limit(serve: Serve) -> None:
    async def undeclared():
        for _ in range(20):
            yield b" " * 100

    async with serve(max_body_bytes=1000) as server:
        declared = await server.http.post(URL, content=b" " * 1001)
        assert error_of(declared, 413)["code"] == "request_too_large"
        assert error_of(await server.http.post(URL, content=undeclared()), 413)["code"] == "request_too_large"
        assert (await server.chat()).status_code == 200


async def test_a_dead_engine(serve: Serve) -> None:
    async with serve() as server:
        server.engine.die()
        assert error_of(await server.chat(), 503)["code"] == "engine_dead"
        assert error_of(await server.chat(stream=True), 503)["type"] == "server_error"
        assert error_of(await server.http.get("/health"), 503)


async def test_an_unforeseen_exception_tells_nothing_of_the_inside(serve: Serve) -> None:
    def script(_: object) -> list[Any]:
        raise RuntimeError("the secret of the house")

    async with serve(script=script) as server:
        response = await server.chat()
    error = error_of(response, 500)
    assert error["type"] == "server_error"
    assert "secret" not in response.text


@pytest.mark.parametrize("name", sorted(UNSUPPORTED_FIELDS))
async def test_unsupported_fields_are_refused_by_name(serve: Serve, name: str) -> None:
    async with serve() as server:
        error = error_of(await server.chat(**{name: {"some": "wish"}}), 400)
        assert (error["param"], error["code"]) == (name, "unsupported_parameter")
        for harmless in (None, *UNSUPPORTED_FIELDS[name]):
            response = await server.chat(**{name: harmless})
            assert response.status_code == 200
            assert "x-rose-ignored-fields" not in response.headers


async def test_harmless_fields_are_accepted_in_silence(serve: Serve) -> None:
    async with serve(strict_fields=True) as server:
        response = await server.chat(**dict.fromkeys(HARMLESS_FIELDS, "x"))
    assert response.status_code == 200
    assert "x-rose-ignored-fields" not in response.headers


def test_the_kinds_of_fields_do_not_overlap() -> None:
    honoured = set(ChatCompletionRequest.model_fields)
    assert not honoured & HARMLESS_FIELDS
    assert not honoured & set(UNSUPPORTED_FIELDS)
    assert not HARMLESS_FIELDS & set(UNSUPPORTED_FIELDS)


async def test_unknown_fields_are_reported_and_counted(serve: Serve) -> None:
    async with serve() as server:
        response = await server.chat(thinking=True, **{"bad\r\nname": 1})
        assert response.headers["x-rose-ignored-fields"] == "thinking, bad__name"
        streamed = await server.chat(thinking=True, stream=True)
        assert streamed.headers["x-rose-ignored-fields"] == "thinking"
        absent = await server.chat(thinking=None, chat_template_kwargs={"enable_thinking": None})
        assert "x-rose-ignored-fields" not in absent.headers, "null is as left out"
        metrics = (await server.http.get("/metrics")).text
    assert 'rose:ignored_fields_total{field="thinking",model_name="rose-test"} 2.0' in metrics


async def test_strict_fields(serve: Serve) -> None:
    async with serve(strict_fields=True) as server:
        error = error_of(await server.chat(thinking=True), 400)
        assert (await server.chat(thinking=None)).status_code == 200
    assert (error["param"], error["code"]) == ("thinking", "unknown_parameter")


@pytest.mark.parametrize(
    "form",
    [
        {"guided_regex": 'a"(b'},
        {"guided_json": {"type": "string", "pattern": 'a"(b'}},
        {"guided_grammar": 'start: /a"(b/'},
    ],
)
async def test_a_regex_that_is_none_is_told_in_words(serve: Serve, form: dict[str, Any]) -> None:
    async with serve() as server:
        message = error_of(await server.chat(**form), 400)["message"]
    assert re.search(r'invalid regex "a\\?"\(b": unclosed group$', message), message


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
async def test_an_unknown_field_that_is_null_is_as_left_out_in_every_api(
    serve: Serve, path: str, body: dict[str, Any]
) -> None:
    async with serve(strict_fields=True) as server:
        assert (await server.http.post(path, json=body | {"colour": "red"})).status_code == 400
        response = await server.http.post(path, json=body | {"colour": None})
    assert response.status_code == 200, response.text
    assert "x-rose-ignored-fields" not in response.headers


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(sorted([*ChatCompletionRequest.model_fields, *UNSUPPORTED_FIELDS]))


@settings(max_examples=120)
@given(st.dictionaries(FIELDS, JSON, max_size=4))
async def test_no_value_of_any_field_is_a_server_error(serve: Serve, body: dict[str, Any]) -> None:
    async with serve() as server:
        response = await server.chat(**body)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
