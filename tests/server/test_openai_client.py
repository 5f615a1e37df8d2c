"""The official client against a real server over a scripted engine."""

import json
from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from rose.chat.tokenizer import Tokenizer
from rose.engine.messages import AddRequest
from rose.errors import EngineDead
from tests.fakes import FakeEngine, Step, by_token
from tests.server.live import LiveServer, live_server

THINK = "<|channel|>analysis<|message|>Need the tide.<|end|><|start|>assistant"
CALL = THINK + '<|channel|>commentary to=functions.tide <|constrain|>json<|message|>{"port":"Oban"}<|call|>'
FINAL = THINK + "<|channel|>final<|message|>High at 4.<|return|>"
TIDE = {"type": "function", "function": {"name": "tide", "parameters": {"type": "object"}, "strict": True}}


@pytest.fixture(scope="module")
def server(tokenizer: Tokenizer) -> Iterator[LiveServer]:
    """An engine that calls the tool when there is one and no result yet, dies of the word `poison`, else answers."""

    def script(request: AddRequest) -> list[Step]:
        prompt = tokenizer.decode(request.prompt_token_ids)
        if "poison" in prompt:
            return [*by_token(tokenizer.encode_with_special("<|channel|>final<|message|>High")), EngineDead("killed")]
        wants_call = "namespace functions" in prompt and "high at" not in prompt
        return by_token(tokenizer.encode_with_special(CALL if wants_call else FINAL))

    with live_server(FakeEngine(script), tokenizer, api_keys=("sk-good",)) as running:
        yield running


@pytest.fixture
def client(server: LiveServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="sk-good", max_retries=0) as client:
        yield client


def ask(client: OpenAI, text: str = "tide?", **options):
    options = {"model": "rose-test", "messages": [{"role": "user", "content": text}]} | options
    return client.chat.completions.create(**options)


def test_content_and_reasoning_apart(client: OpenAI) -> None:
    message = ask(client).choices[0].message
    assert (message.content, message.reasoning) == ("High at 4.", "Need the tide.")


def test_streams_one_after_another_on_one_connection(client: OpenAI) -> None:
    for _ in range(3):
        content, usage = "", None
        for chunk in ask(client, stream=True, stream_options={"include_usage": True}):
            content += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            usage = chunk.usage or usage
        assert content == "High at 4."
        assert usage is not None
        assert usage.completion_tokens_details.reasoning_tokens > 0


def test_the_clients_own_stream_helper(client: OpenAI) -> None:
    messages = [{"role": "user", "content": "tide?"}]
    with client.chat.completions.stream(model="rose-test", messages=messages, tools=[TIDE]) as stream:
        for _ in stream:
            pass
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls[0].function.arguments == '{"port":"Oban"}'


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call_round_trip(client: OpenAI, server: LiveServer, tokenizer: Tokenizer, stream: bool) -> None:
    messages = [{"role": "user", "content": "tide?"}]
    if stream:
        calls, reasoning = {}, ""
        for chunk in ask(client, messages=messages, tools=[TIDE], stream=True):
            delta = chunk.choices[0].delta
            reasoning += getattr(delta, "reasoning", None) or ""
            for piece in delta.tool_calls or ():
                call = calls.setdefault(piece.index, {"type": "function", "function": {"arguments": ""}})
                if piece.id:
                    call["id"], call["function"]["name"] = piece.id, piece.function.name
                call["function"]["arguments"] += piece.function.arguments
        turn = {"role": "assistant", "content": "", "reasoning": reasoning, "tool_calls": list(calls.values())}
    else:
        turn = ask(client, messages=messages, tools=[TIDE]).choices[0].message.model_dump(exclude_none=True)
    (call,) = turn["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"port": "Oban"}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "high at 4"}
    answer = ask(client, messages=[*messages, turn, result], tools=[TIDE])
    assert answer.choices[0].message.content == "High at 4."
    prompt = tokenizer.decode(server.engine.submitted[-1].prompt_token_ids, keep_special=True)
    assert "<|channel|>analysis<|message|>Need the tide." in prompt, "the reasoning came back with its call"
    assert "functions.tide to=assistant" in prompt


def test_errors_become_the_clients_classes(client: OpenAI, server: LiveServer) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        ask(client, temperature=9)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as forced:
        ask(client, tool_choice="required", stream=True)
    assert (forced.value.param, forced.value.code) == ("tool_choice", "invalid_value")
    with pytest.raises(openai.BadRequestError) as too_long:
        ask(client, "tide " * 9000, stream=True)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as missing:
        ask(client, model="gpt-9")
    assert missing.value.code == "model_not_found"
    with (
        OpenAI(base_url=f"{server.url}/v1", api_key="sk-bad", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        ask(stranger)
    assert refused.value.code == "invalid_api_key"


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["rose-test"]
    assert client.models.retrieve("rose-test").id == "rose-test"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another/model")


def test_the_engines_death_in_a_stream(tokenizer: Tokenizer) -> None:
    steps = [*by_token(tokenizer.encode_with_special("<|channel|>final<|message|>High")), EngineDead("killed")]
    with (
        live_server(FakeEngine(lambda _: steps), tokenizer) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        content = ""
        with pytest.raises(openai.APIError, match="engine"):
            for chunk in ask(client, stream=True):
                content += chunk.choices[0].delta.content or ""
        assert content == "High"
        with pytest.raises(openai.InternalServerError) as gone:
            ask(client)
        assert gone.value.status_code == 503
