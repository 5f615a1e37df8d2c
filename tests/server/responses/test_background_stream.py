"""Responses that are streamed from the background: their readers come, go and come again."""

import asyncio
import threading
import time
from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from rose.chat.tokenizer import Tokenizer
from rose.engine.messages import AddRequest
from rose.server.responses.event_log import EventLog, EventLogs
from rose.server.responses.events import ArgumentsDelta
from tests.fakes import FakeEngine, Step, by_token
from tests.server.live import LiveServer, live_server
from tests.server.responses.conftest import FINAL


@pytest.fixture(scope="module")
def server(tokenizer: Tokenizer) -> Iterator[LiveServer]:
    """An engine that takes its time, and for ever if it is asked to."""

    def script(request: AddRequest) -> list[Step]:
        waits = "hold the line" in tokenizer.decode(request.prompt_token_ids)
        steps = by_token(tokenizer.encode_with_special(FINAL))
        return [*steps[:12], 60.0] if waits else steps

    with live_server(FakeEngine(script, step_s=0.01), tokenizer) as running:
        yield running


@pytest.fixture
def client(server: LiveServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def begin(client: OpenAI, text: str, num_events: int) -> tuple[str, list]:
    """Start a response, read a few events, and go away."""
    with client.responses.create(model="rose-test", input=text, background=True, stream=True) as stream:
        events = [event for event, _ in zip(stream, range(num_events), strict=False)]
    return events[0].response.id, events


@pytest.mark.parametrize("num_events", [1, 5, 8])
def test_a_reader_who_comes_again_misses_nothing(client: OpenAI, server: LiveServer, num_events: int) -> None:
    response_id, first = begin(client, "tide?", num_events)
    assert not server.engine.aborted, "who goes away ends nothing"
    last = first[-1].sequence_number
    rest = list(client.responses.retrieve(response_id, stream=True, starting_after=last))
    everything = list(client.responses.retrieve(response_id, stream=True))
    assert [*first, *rest] == everything
    assert [event.sequence_number for event in everything] == list(range(len(everything)))
    assert everything[-1].type == "response.completed"
    assert everything[-1].response.output_text == "High at 4."
    assert everything[-1].response == client.responses.retrieve(response_id)
    assert list(client.responses.retrieve(response_id, stream=True, starting_after=len(everything) - 1)) == []
    assert list(client.responses.retrieve(response_id, stream=True, starting_after=9999)) == []


def test_several_readers_at_once_see_the_same(client: OpenAI) -> None:
    response_id, _ = begin(client, "tide?", 1)
    seen: list[list] = []

    def read() -> None:
        seen.append(list(client.responses.retrieve(response_id, stream=True)))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert all(events == seen[0] for events in seen)


def test_cancelling_tells_its_readers(client: OpenAI, server: LiveServer) -> None:
    response_id, events = begin(client, "hold the line", 4)
    assert client.responses.cancel(response_id).status == "cancelled"
    rest = list(client.responses.retrieve(response_id, stream=True, starting_after=events[-1].sequence_number))
    assert rest[-1].type == "response.failed"
    assert rest[-1].response.status == "cancelled"
    assert client.responses.retrieve(response_id).status == "cancelled"


def test_deleting_ends_it_for_good(client: OpenAI) -> None:
    response_id, _ = begin(client, "hold the line", 4)
    client.responses.delete(response_id)
    time.sleep(0.2)
    for stream in (True, False):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(response_id, stream=stream)


@pytest.mark.parametrize("options", [{}, {"background": True}, {"stream": True}])
def test_other_responses_have_no_events_to_stream(client: OpenAI, options: dict[str, bool]) -> None:
    made = client.responses.create(model="rose-test", input="tide?", **options)
    response_id = [*made][-1].response.id if "stream" in options else made.id
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.retrieve(response_id, stream=True)
    assert (refused.value.param, refused.value.code) == ("stream", "unsupported_parameter")


def event(number: int, text: str = "x") -> ArgumentsDelta:
    return ArgumentsDelta(sequence_number=number, item_id="fc_1", output_index=0, delta=text)


@pytest.mark.anyio
async def test_a_log_is_followed_while_it_grows() -> None:
    log = EventLog()
    log.append([event(0), event(1)])

    async def read(after: int) -> bytes:
        return b"".join([frames async for frames in log.follow(after)])

    readers = [asyncio.create_task(read(after)) for after in (-1, 0, 2)]
    await asyncio.sleep(0)
    for number in range(2, 5):
        log.append([event(number)])
        await asyncio.sleep(0)
    log.end()
    all_of_it, most, last = await asyncio.gather(*readers)
    numbers = [f'"sequence_number":{n}'.encode() for n in range(5)]
    assert [n in all_of_it for n in numbers] == [True] * 5
    assert [n in most for n in numbers] == [False, True, True, True, True]
    assert [n in last for n in numbers] == [False, False, False, True, True]
    assert await read(-1) == all_of_it


def test_logs_that_are_over_are_kept_up_to_a_size() -> None:
    logs = EventLogs(max_bytes=3000)
    for name in "abcd":
        logs.open(name).append([event(0, "x" * 1000)])
    for name in "abc":
        logs.close(name)
    assert [logs.get(name) is not None for name in "abcd"] == [False, True, True, True], "the open one stays"
    logs.forget("b")
    logs.forget("b")
    assert logs.get("b") is None
    logs.open("e").append([event(0, "x" * 9000)])
    logs.close("e")
    assert [logs.get(name) is not None for name in "cde"] == [False, True, True], "the newest stays, whatever its size"
