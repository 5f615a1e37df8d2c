"""The official client's Responses API against a real server over a scripted engine."""

from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from rose.chat.tokenizer import Tokenizer
from rose.engine.messages import AddRequest
from rose.errors import EngineDead
from tests.fakes import FakeEngine, Step, by_token
from tests.server.live import LiveServer, live_server
from tests.server.responses.conftest import CALL, CUT, FINAL, TIDE


@pytest.fixture(scope="module")
def server(tokenizer: Tokenizer) -> Iterator[LiveServer]:
    """An engine that calls the tool when there is one and no result yet, else answers."""

    def script(request: AddRequest) -> list[Step]:
        prompt = tokenizer.decode(request.prompt_token_ids)
        wants_call = "namespace functions" in prompt and "high at" not in prompt
        return by_token(tokenizer.encode_with_special(CALL if wants_call else FINAL))

    with live_server(FakeEngine(script), tokenizer, api_keys=("sk-good",)) as running:
        yield running


@pytest.fixture
def client(server: LiveServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="sk-good", max_retries=0) as client:
        yield client


def test_a_whole_answer(client: OpenAI) -> None:
    response = client.responses.create(model="rose-test", input="tide?")
    assert response.output_text == "High at 4."
    assert response.output[0].content[0].text == "Need the tide."
    assert client.responses.retrieve(response.id).output_text == "High at 4."
    assert client.responses.input_items.list(response.id).data[0].content[0].text == "tide?"
    assert client.responses.cancel(response.id).status == "completed"
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


@pytest.mark.parametrize("given_back", ["items", "id"])
def test_a_tool_loop_through_the_clients_accumulator(
    client: OpenAI, server: LiveServer, tokenizer: Tokenizer, given_back: str
) -> None:
    question = {"role": "user", "content": "tide?"}
    with client.responses.stream(model="rose-test", input=[question], tools=[TIDE]) as stream:
        arguments = [event.snapshot for event in stream if event.type == "response.function_call_arguments.delta"]
        first = stream.get_final_response()
    assert arguments[-1] == '{"port":"Oban"}'
    _, call = first.output
    assert call.parsed_arguments == {"port": "Oban"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "high at 4"}
    items, options = [question, *first.output, result], {}
    if given_back == "id":
        items, options = [result], {"previous_response_id": first.id}
    with client.responses.stream(model="rose-test", input=items, tools=[TIDE], **options) as stream:
        texts = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        second = stream.get_final_response()
    assert texts[-1] == second.output_text == "High at 4."
    prompt = tokenizer.decode(server.engine.submitted[-1].prompt_token_ids, keep_special=True)
    assert "<|channel|>analysis<|message|>Need the tide." in prompt, "the reasoning came back with its call"


def test_a_cut_stream_ends_as_incomplete(client: OpenAI) -> None:
    with client.responses.stream(model="rose-test", input="?", tools=[TIDE], max_output_tokens=CUT) as stream:
        last = list(stream)[-1]
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details.reason == "max_output_tokens"


def test_errors_become_the_clients_classes(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as too_long:
        client.responses.create(model="rose-test", input="tide " * 9000, stream=True)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="gpt-9", input="tide?")


def test_the_engines_death_in_a_stream(tokenizer: Tokenizer) -> None:
    steps = [*by_token(tokenizer.encode_with_special("<|channel|>final<|message|>High")), EngineDead("killed")]
    with (
        live_server(FakeEngine(lambda _: steps), tokenizer) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        events = list(client.responses.create(model="rose-test", input="tide?", stream=True))
    assert events[-1].type == "response.failed"
    assert "engine" in events[-1].response.error.message
