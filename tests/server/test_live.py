"""What only shows on real sockets: many streams at once, vanishing clients, the end of the server."""

import asyncio
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import httpx
import pytest
from fastapi import FastAPI

from rose.chat.tokenizer import Tokenizer
from rose.engine.messages import AddRequest
from rose.errors import ConfigError
from rose.server.http import HttpServer, address_of, bind
from tests.fakes import FakeEngine, Step, by_token
from tests.server.conftest import read_stream
from tests.server.live import live_server

ENDLESS = "<|channel|>final<|message|>" + "High at 4. " * 1000


def endless(tokenizer: Tokenizer) -> FakeEngine:
    """An engine that has much to say, slowly."""
    steps = by_token(tokenizer.encode_with_special(ENDLESS))
    return FakeEngine(lambda _: steps, max_model_len=100_000, step_s=0.005)


def wait_until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def body(text: str = "hi", **fields) -> dict:
    return {"messages": [{"role": "user", "content": text}]} | fields


NUM_STREAMS = 256


def own_words(number: int) -> str:
    return " ".join(f"{number}:{i}" for i in range(8))


def check_chat_stream(response: httpx.Response, number: int) -> None:
    stream = read_stream(response)
    assert stream.text("content") == own_words(number)
    assert (stream.finish_reasons(), stream.is_done, stream.errors) == (["stop"], True, [])
    assert len({chunk["id"] for chunk in stream.chunks}) == 1


def check_responses_stream(response: httpx.Response, number: int) -> None:
    frames = [frame.split("\n") for frame in response.text.strip().split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in frames]
    assert [name.removeprefix("event: ") for name, _ in frames] == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta") == own_words(number)
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == own_words(number)
    item_ids = {event["item_id"] for event in events if "item_id" in event}
    assert item_ids == {events[-1]["response"]["output"][0]["id"]}


@pytest.mark.parametrize(
    ("path", "field", "check"),
    [
        ("/v1/chat/completions", "messages", check_chat_stream),
        ("/v1/responses", "input", check_responses_stream),
    ],
)
def test_256_streams_at_once_keep_their_events_apart_and_in_order(
    tokenizer: Tokenizer, path: str, field: str, check: Callable[[httpx.Response, int], None]
) -> None:
    def script(request: AddRequest) -> list[Step]:
        name = re.search(r"#(\d+)#", tokenizer.decode(request.prompt_token_ids))
        assert name is not None
        return by_token(
            tokenizer.encode_with_special(f"<|channel|>final<|message|>{own_words(int(name[1]))}<|return|>")
        )

    async def one(client: httpx.AsyncClient, number: int) -> None:
        asked = {field: [{"role": "user", "content": f"#{number}#"}], "stream": True}
        check(await client.post(path, json=asked), number)

    async def all_of_them(url: str) -> None:
        limits = httpx.Limits(max_connections=NUM_STREAMS)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=100) as client:
            await asyncio.gather(*(one(client, number) for number in range(NUM_STREAMS)))

    # A step of its own time lets all the streams begin before the first one ends.
    with live_server(FakeEngine(script, step_s=0.02), tokenizer) as server:
        asyncio.run(all_of_them(server.url))
        assert len(server.engine.submitted) == NUM_STREAMS
        assert server.engine.max_open > NUM_STREAMS // 2
        assert server.engine.num_open == 0


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_vanishes_is_aborted(tokenizer: Tokenizer, stream: bool, n: int) -> None:
    with live_server(endless(tokenizer), tokenizer) as server:
        with httpx.Client(base_url=server.url, timeout=30) as client:
            if stream:
                with client.stream("POST", "/v1/chat/completions", json=body(stream=True, n=n)) as response:
                    next(response.iter_lines())
            else:
                with pytest.raises(httpx.ReadTimeout):
                    client.post("/v1/chat/completions", json=body(n=n), timeout=0.3)
        wait_until(lambda: server.engine.aborted and server.engine.num_open == 0)
        assert [(index, reason) for _, index, reason in server.engine.aborted] == [(None, "abort")]
        metrics = httpx.get(f"{server.url}/metrics").text
        assert f'finished_reason="abort",model_name="rose-test"}} {n}.0' in metrics


def test_a_client_that_vanishes_before_the_first_output_is_aborted(tokenizer: Tokenizer) -> None:
    with live_server(FakeEngine(lambda _: [60.0]), tokenizer) as server:
        for stream in (True, False):
            with httpx.Client(base_url=server.url) as client, pytest.raises(httpx.ReadTimeout):
                client.post("/v1/chat/completions", json=body(stream=stream), timeout=0.2)
            wait_until(lambda: server.engine.num_open == 0)


def test_open_streams_end_with_the_server(tokenizer: Tokenizer) -> None:
    with live_server(endless(tokenizer), tokenizer, grace_s=0.1) as server, httpx.Client(base_url=server.url) as client:
        with client.stream("POST", "/v1/chat/completions", json=body(stream=True)) as response:
            lines = response.iter_lines()
            next(lines)
            server.stop()
            events = [line for line in lines if line]
        assert '"code":"aborted"' in events[-2]
        assert events[-1] == "data: [DONE]"
    assert server.engine.is_closed


def test_short_requests_finish_within_the_grace(tokenizer: Tokenizer) -> None:
    steps = by_token(tokenizer.encode_with_special("<|channel|>final<|message|>High at 4.<|return|>"))
    engine = FakeEngine(lambda _: steps, step_s=0.01)
    with (
        live_server(engine, tokenizer, grace_s=20.0) as server,
        httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body(stream=True)) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        began = time.monotonic()
        server.stop()
        assert '"finish_reason":"stop"' in "".join(lines)
    assert time.monotonic() - began < 10, "nothing waits when nothing is open"


def test_a_large_body_is_refused_and_harms_nobody(tokenizer: Tokenizer) -> None:
    with (
        live_server(endless(tokenizer), tokenizer) as server,
        httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body(stream=True)) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        large = httpx.post(f"{server.url}/v1/chat/completions", json=body("x" * 10_000_000))
        assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")
        assert next(line for line in lines if line).startswith("data: ")


def test_a_port_in_use_is_a_config_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="in use"):
        bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ConfigError, match="cannot listen"):
        bind("no-such-host.invalid", 8000)


def test_a_port_that_another_took_while_this_one_loaded_is_a_config_error() -> None:
    async def nothing() -> None: ...

    with bind("127.0.0.1", 0) as first, bind(*first.getsockname()) as second:
        first.listen()
        server = HttpServer(FastAPI(), on_started=lambda: None, on_stopping=nothing, grace_s=0.0)
        with pytest.raises(ConfigError, match=f"cannot listen on {address_of(second)}: Address already in use"):
            asyncio.run(server.serve(sockets=[second]))


def test_the_servers_process_has_no_torch() -> None:
    modules = "rose.server.app, rose.server.http, rose.cli.serve, rose.engine.process_client, rose.weights.resolve"
    code = f"import sys; import {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
