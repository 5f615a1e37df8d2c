"""`openai`, part of the suite: its helpers and accumulators, and whether the bundled model's answers in them are right.

Errors, and what a scripted engine shows better, are in `tests/server`; forced calls and odd schemas in `tests/e2e`.
"""

import asyncio
import math
from collections.abc import Iterator

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from tests.clients.conftest import KEY

SUM = "What is 127 + 385?"
RIGHT = "127 + 385 = 512"
MODEL = {"model": "rose-demo", "temperature": 0}
LOGPROBS = ["message.output_text.logprobs"]


class Sum(BaseModel):
    """The answer as an object."""

    answer: int


class GetWeather(BaseModel):
    """The weather in a city."""

    city: str


@pytest.fixture
def client(demo: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{demo}/v1", api_key=KEY, max_retries=0, timeout=60) as client:
        yield client


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_a_response_and_its_stream(client: OpenAI) -> None:
    whole = client.responses.create(input=SUM, reasoning={"effort": "high"}, **MODEL)
    reasoning, message = whole.output
    assert (whole.output_text, message.content[0].text) == (RIGHT, RIGHT)
    assert "hundreds: 1+3+1=5" in reasoning.content[0].text
    with client.responses.stream(input=SUM, reasoning={"effort": "high"}, **MODEL) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == RIGHT
    assert [item.type for item in final.output] == ["reasoning", "message"]
    assert final.output[0].content == reasoning.content
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.usage.output_tokens_details.reasoning_tokens > 20


def test_parsed_answers(client: OpenAI) -> None:
    chat = client.chat.completions.parse(messages=user(SUM), response_format=Sum, **MODEL)
    assert chat.choices[0].message.parsed == Sum(answer=512)
    with client.chat.completions.stream(messages=user(SUM), response_format=Sum, **MODEL) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == Sum(answer=512)
    assert client.responses.parse(input=SUM, text_format=Sum, **MODEL).output_parsed == Sum(answer=512)
    with client.responses.stream(input=SUM, text_format=Sum, **MODEL) as stream:
        assert stream.get_final_response().output_parsed == Sum(answer=512)


def test_parsed_calls(client: OpenAI) -> None:
    """Strict tools, made by the client from a class; whole and streamed."""
    question = user("What is the weather in Paris?")
    chat_tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    made = [client.chat.completions.parse(messages=question, tools=[chat_tool], **MODEL)]
    with client.chat.completions.stream(messages=question, tools=[chat_tool], **MODEL) as stream:
        made.append(stream.get_final_completion())
    for completion in made:
        [call] = completion.choices[0].message.tool_calls
        assert call.function.parsed_arguments == GetWeather(city="Paris")
    tool = {"type": "function"} | chat_tool["function"]
    response = client.responses.parse(input=question, tools=[tool], **MODEL)
    assert response.output[-1].parsed_arguments == {"city": "Paris"}


def test_logprobs_of_a_chat(client: OpenAI) -> None:
    options = MODEL | {"messages": user(SUM), "logprobs": True, "top_logprobs": 3}
    entries = client.chat.completions.create(**options).choices[0].logprobs.content
    assert "".join(entry.token for entry in entries) == RIGHT
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert (entry.token, entry.logprob) == (entry.top_logprobs[0].token, entry.top_logprobs[0].logprob)
        assert sum(math.exp(top.logprob) for top in entry.top_logprobs) <= 1.0 + 1e-6
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(stream=True, **options)]
    streamed = [entry for choice in chunks if choice.logprobs for entry in choice.logprobs.content]
    assert [entry.token for entry in streamed] == [entry.token for entry in entries]
    assert [entry.logprob for entry in streamed] == pytest.approx([entry.logprob for entry in entries], abs=1e-3)


def test_logprobs_of_a_response(client: OpenAI) -> None:
    response = client.responses.create(input=SUM, include=LOGPROBS, top_logprobs=2, **MODEL)
    entries = response.output[-1].content[0].logprobs
    assert "".join(entry.token for entry in entries) == RIGHT
    assert all(entry.top_logprobs[0].logprob == entry.logprob for entry in entries)


def test_completions(client: OpenAI) -> None:
    """The continuation of a chat that was rendered by hand, as token ids: the one way to give control tokens."""
    url = str(client.base_url).removesuffix("v1/")
    ids = client.post(f"{url}tokenize", body={"messages": user(SUM)}, cast_to=dict[str, object])["tokens"]
    options = MODEL | {"prompt": ids, "max_tokens": 100, "logprobs": 2}
    whole = client.completions.create(**options).choices[0]
    assert whole.finish_reason == "stop"
    assert RIGHT in whole.text
    assert "".join(whole.logprobs.tokens).startswith(whole.text)
    assert all(len(tops) == 2 for tops in whole.logprobs.top_logprobs)
    chunks = list(client.completions.create(stream=True, stream_options={"include_usage": True}, **options))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.text
    assert chunks[-1].usage.prompt_tokens == len(ids)
    echoed = client.completions.create(prompt="127 + 385 =", echo=True, max_tokens=2, **MODEL).choices[0].text
    assert echoed.startswith("127 + 385 =")


def test_many_at_once(demo: str) -> None:
    """Chats and responses at the same time, each with its own answer."""

    async def ask_all() -> None:
        async with AsyncOpenAI(base_url=f"{demo}/v1", api_key=KEY, max_retries=0, timeout=100) as client:

            async def ask(index: int) -> str:
                question = f"What is {index} + 385?"
                if index % 2:
                    return (await client.responses.create(input=question, **MODEL)).output_text
                stream = await client.chat.completions.create(messages=user(question), stream=True, **MODEL)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            numbers = range(120, 136)
            answers = await asyncio.gather(*map(ask, numbers))
            assert answers == [f"{number} + 385 = {number + 385}" for number in numbers]

    asyncio.run(ask_all())
