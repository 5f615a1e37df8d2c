"""The APIs over each chat format: what a client sees does not depend on how the model writes."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx
import pytest

from rose.server.app import create_app
from rose.server.settings import ServerSettings
from tests.chat.subjects import SUBJECTS, Subject, subject
from tests.fakes import FakeEngine, by_token
from tests.server.conftest import read_stream

pytestmark = pytest.mark.anyio

TOOL = {"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {}}}}
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(params=SUBJECTS)
def tried(request) -> Subject:
    return subject(request.param)


@pytest.fixture
def serve_sample(tried: Subject) -> Callable[[list[int]], AbstractAsyncContextManager[httpx.AsyncClient]]:
    @asynccontextmanager
    async def start(tokens: list[int]) -> AsyncIterator[httpx.AsyncClient]:
        engine = FakeEngine(lambda _: by_token(tokens))
        app = create_app(engine, tried.chat, tried.tokenizer, ServerSettings(served_model_names=("m",)))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            yield http

    return start


async def test_reasoning_and_an_answer(tried: Subject, serve_sample) -> None:
    sample = tried.sample(tried.answer, reasoning="Need it.", content="High at 4.")
    async with serve_sample(sample) as http:
        whole = (await http.post("/v1/chat/completions", json={"messages": HI})).json()["choices"][0]
        stream = read_stream(await http.post("/v1/chat/completions", json={"messages": HI, "stream": True}))
    assert (whole["message"]["reasoning"], whole["message"]["content"]) == ("Need it.", "High at 4.")
    assert (stream.text("reasoning"), stream.text("content")) == ("Need it.", "High at 4.")
    assert [whole["finish_reason"]] == stream.finish_reasons() == ["stop"]


async def test_a_call(tried: Subject, serve_sample) -> None:
    sample = tried.sample(tried.call, reasoning="Need it.", name="tide", arguments='{"place": "Oban"}')
    body = {"messages": HI, "tools": [TOOL], "tool_choice": "required"}
    async with serve_sample(sample) as http:
        whole = (await http.post("/v1/chat/completions", json=body)).json()["choices"][0]
        stream = read_stream(await http.post("/v1/chat/completions", json=body | {"stream": True}))
        message = (await http.post("/v1/messages", json={"max_tokens": 99, "messages": HI})).json()
    [call] = whole["message"]["tool_calls"]
    assert call["function"] == {"name": "tide", "arguments": '{"place": "Oban"}'}
    assert [(each["name"], json.loads(each["arguments"])) for each in stream.tool_calls()] == [
        ("tide", {"place": "Oban"})
    ]
    assert [whole["finish_reason"]] == stream.finish_reasons() == ["tool_calls"]
    assert [each["name"] for each in message["content"] if each["type"] == "tool_use"] == ["tide"]
