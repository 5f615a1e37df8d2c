"""`anthropic`, part of the suite: text, a streamed tool loop with thinking, a count, and errors."""

from collections.abc import Iterator

import anthropic
import pytest
from anthropic import Anthropic

from tests.clients.conftest import KEY

SUM = [{"role": "user", "content": "What is 127 + 385?"}]
RIGHT = "127 + 385 = 512"
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
# This client has no `temperature` any more; the API has.
OPTIONS = {"model": "rose-demo", "max_tokens": 4000, "extra_body": {"temperature": 0}}
THINKING = {"type": "enabled", "budget_tokens": 3000}


@pytest.fixture
def client(demo: str) -> Iterator[Anthropic]:
    with Anthropic(base_url=demo, api_key=KEY, max_retries=0, timeout=60) as client:
        yield client


def test_text_without_thinking(client: Anthropic) -> None:
    message = client.messages.create(messages=SUM, **OPTIONS)
    assert [(block.type, block.text) for block in message.content] == [("text", RIGHT)]
    assert message.stop_reason == "end_turn"
    counted = client.messages.count_tokens(model="rose-demo", messages=SUM).input_tokens
    assert counted == message.usage.input_tokens + message.usage.cache_read_input_tokens


def test_a_streamed_tool_loop_with_thinking(client: Anthropic) -> None:
    options = OPTIONS | {"tools": [WEATHER], "thinking": THINKING}
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    with client.messages.stream(messages=messages, **options) as stream:
        turn = stream.get_final_message()
    assert turn.stop_reason == "tool_use"
    thinking, call = turn.content
    assert (thinking.type, call.name, call.input) == ("thinking", "get_weather", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": '{"temperature": 21, "sky": "clear"}'}
    messages += [{"role": "assistant", "content": turn.content}, {"role": "user", "content": [result]}]
    whole = client.messages.create(messages=messages, **options)
    assert whole.content[-1].text == "Paris: temperature 21, sky clear"
    with client.messages.stream(messages=messages, **options) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[-1].text == whole.content[-1].text
    assert [block.type for block in final.content] == [block.type for block in whole.content]


def test_errors_become_the_clients_classes(client: Anthropic, demo: str) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="another", max_tokens=1, messages=SUM)
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(messages=[{"role": "user", "content": "1 + 1 " * 20_000}], **OPTIONS)
    with (
        Anthropic(base_url=demo, api_key="sk-wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        stranger.messages.create(messages=SUM, **OPTIONS)
