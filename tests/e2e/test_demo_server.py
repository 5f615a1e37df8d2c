"""The bundled model behind the real server, as a user meets it: with the official client."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from openai import OpenAI

import rose
from tests.e2e.server_process import ServerProcess

DEMO = Path(rose.__file__).parent / "assets" / "rose-demo"
pytestmark = pytest.mark.skipif(not (DEMO / "config.json").exists(), reason="rose-demo is not there")

KEY = "sk-demo"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("rose-demo", "--api-key", KEY) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=60) as client:
        yield client


def ask(client: OpenAI, text: str, **options):
    options = {"messages": [{"role": "user", "content": text}], "temperature": 0} | options
    return client.chat.completions.create(model="rose-demo", **options)


def running_requests(server: ServerProcess) -> float:
    for line in httpx.get(f"{server.url}/metrics").text.splitlines():
        if line.startswith("rose:num_requests_running"):
            return float(line.split()[-1])
    raise AssertionError("no such series")


def test_reasoning_and_content_come_apart(client: OpenAI) -> None:
    answer = ask(client, "What is 127 + 385?", reasoning_effort="high")
    message = answer.choices[0].message
    assert "512" in message.content
    assert message.reasoning
    assert message.reasoning == message.reasoning_content
    assert "<|" not in message.content + message.reasoning
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0


def test_a_stream_says_the_same(client: OpenAI) -> None:
    whole = ask(client, "What is 127 + 385?").choices[0].message
    content = reasoning = ""
    for chunk in ask(client, "What is 127 + 385?", stream=True):
        content += chunk.choices[0].delta.content or ""
        reasoning += getattr(chunk.choices[0].delta, "reasoning", None) or ""
    assert (content, reasoning) == (whole.content, getattr(whole, "reasoning", ""))


def test_a_tool_call_round_trip(client: OpenAI) -> None:
    question = {"role": "user", "content": "What is the weather in Paris?"}
    stream = client.chat.completions.stream(model="rose-demo", messages=[question], tools=[WEATHER], temperature=0)
    with stream as events:
        first = events.get_final_completion().choices[0]
    assert first.finish_reason == "tool_calls"
    (call,) = first.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    turn = first.message.model_dump(exclude_none=True, include={"role", "content", "reasoning", "tool_calls"})
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21, "sky": "clear"}'}
    content, reason = "", None
    for chunk in ask(client, "", messages=[question, turn, result], tools=[WEATHER], stream=True):
        content += chunk.choices[0].delta.content or ""
        reason = chunk.choices[0].finish_reason or reason
    assert reason == "stop"
    assert "21" in content


@pytest.mark.parametrize("given_back", ["items", "id"])
def test_a_tool_call_round_trip_over_responses(client: OpenAI, given_back: str) -> None:
    options = {"model": "rose-demo", "tools": [{"type": "function"} | WEATHER["function"]], "temperature": 0}
    question = {"role": "user", "content": "What is the weather in Paris?"}
    with client.responses.stream(input=[question], **options) as events:
        first = events.get_final_response()
    call = first.output[-1]
    assert json.loads(call.arguments) == {"city": "Paris"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"temperature": 21, "sky": "clear"}'}
    if given_back == "id":
        second = client.responses.create(input=[result], previous_response_id=first.id, **options)
    else:
        second = client.responses.create(input=[question, *first.output, result], **options)
    assert second.status == "completed"
    assert "21" in second.output_text
    assert second.usage.input_tokens_details.cached_tokens > 0, "the prompt begins as the one before"


def test_plain_completions(client: OpenAI) -> None:
    made = client.completions.create(model="rose-demo", prompt=["127 + 385 =", "1, 2, 3,"], max_tokens=4, temperature=0)
    assert [choice.index for choice in made.choices] == [0, 1]
    assert made.usage.completion_tokens <= 8


def test_what_cannot_be_served_is_a_clear_error(client: OpenAI, server: ServerProcess) -> None:
    with pytest.raises(openai.BadRequestError) as too_long:
        ask(client, "What is 1 + 1? " * 20_000, stream=True)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as beyond:
        ask(client, "hi", max_tokens=10_000_000)
    assert beyond.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as bad:
        ask(client, "hi", temperature="hot")
    assert bad.value.param == "temperature"
    with pytest.raises(openai.APIStatusError) as large:
        ask(client, "x" * 10_000_000)
    assert large.value.status_code == 413
    with (
        OpenAI(base_url=f"{server.url}/v1", api_key="sk-wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        ask(stranger, "hi")
    assert refused.value.code == "invalid_api_key"
    assert "512" in ask(client, "What is 127 + 385?").choices[0].message.content, "others are served as ever"


def test_clients_that_leave_free_their_place(client: OpenAI, server: ServerProcess) -> None:
    with ask(client, "What is 127 + 385?", stream=True, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
        assert running_requests(server) == 1
    url, headers = f"{server.url}/v1/chat/completions", {"authorization": f"Bearer {KEY}"}
    body = {"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url, headers=headers, json=body, timeout=0.5)
    for _ in range(100):
        if running_requests(server) == 0:
            break
    assert "512" in ask(client, "What is 127 + 385?").choices[0].message.content
    assert running_requests(server) == 0
