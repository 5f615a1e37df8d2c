"""The application over a scripted engine, with the real Harmony format and a small tokenizer."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from rose.chat.registry import get_format
from rose.chat.tokenizer import Tokenizer
from rose.server.app import create_app
from rose.server.settings import ServerSettings
from tests.chat.tokenizers_for_tests import tiny_tokenizer
from tests.fakes import FakeEngine, Script, Step, by_token

MODEL = "rose-test"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer(tiny_tokenizer())


@dataclass
class Server:
    """The application under test, its engine, and a client on it."""

    http: httpx.AsyncClient
    engine: FakeEngine

    async def chat(self, *, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        """A chat completion; a user message by default, and no other field that is not given."""
        body = {"messages": [{"role": "user", "content": "hi"}]} | body
        return await self.http.post("/v1/chat/completions", json=body, headers=headers)


Serve = Callable[..., AbstractAsyncContextManager[Server]]


@pytest.fixture
def serve(tokenizer: Tokenizer) -> Serve:
    """Start the application: `serve(sampled)` with text in Harmony, or `serve(script=...)`."""

    @asynccontextmanager
    async def start(
        sampled: str = "<|channel|>final<|message|>High at 4.<|return|>",
        *,
        script: Script | None = None,
        max_model_len: int = 4096,
        step_s: float = 0.0,
        **settings: Any,
    ) -> AsyncIterator[Server]:
        steps: list[Step] = by_token(tokenizer.encode_with_special(sampled))
        engine = FakeEngine(script or (lambda _: steps), max_model_len=max_model_len, step_s=step_s)
        settings = {"served_model_names": (MODEL, "an/alias"), "current_date": "2026-01-31"} | settings
        app = create_app(engine, get_format("harmony", tokenizer), tokenizer, ServerSettings(**settings))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            yield Server(http, engine)
        assert engine.num_open == 0, "a request was left open"

    return start


@dataclass
class Stream:
    """What a client makes of a streamed answer."""

    chunks: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    is_done: bool = False

    def text(self, name: str, index: int = 0) -> str:
        """One text field of the deltas of a choice, joined."""
        return "".join(choice["delta"].get(name) or "" for choice in self.choices(index))

    def choices(self, index: int = 0) -> list[dict[str, Any]]:
        """All chunks' choices with this index."""
        return [choice for chunk in self.chunks for choice in chunk["choices"] if choice["index"] == index]

    def finish_reasons(self, index: int = 0) -> list[str]:
        """Every finish reason that was given; there should be one."""
        return [choice["finish_reason"] for choice in self.choices(index) if choice["finish_reason"]]

    def tool_calls(self, index: int = 0) -> list[dict[str, Any]]:
        """The tool calls, put together as clients do."""
        calls: list[dict[str, Any]] = []
        for choice in self.choices(index):
            for delta in choice["delta"].get("tool_calls") or ():
                if delta["index"] == len(calls):
                    calls.append({"id": delta["id"], "name": delta["function"]["name"], "arguments": ""})
                calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
        return calls


def read_stream(response: httpx.Response) -> Stream:
    """Read a finished stream's events."""
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    stream = Stream()
    for event in response.text.split("\n\n"):
        if not event or event.startswith(":"):
            continue
        assert event.startswith("data: "), event
        assert not stream.is_done, "an event after [DONE]"
        data = event.removeprefix("data: ")
        if data == "[DONE]":
            stream.is_done = True
        elif "error" in (parsed := json.loads(data)):
            stream.errors.append(parsed["error"])
        else:
            stream.chunks.append(parsed)
    return stream
