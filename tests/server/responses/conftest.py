"""What the tests of this API share."""

import json
from typing import Any

import httpx
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.server.conftest import Server

THINK = "<|channel|>analysis<|message|>Need the tide.<|end|><|start|>assistant"
FINAL = THINK + "<|channel|>final<|message|>High at 4.<|return|>"
CALL = THINK + '<|channel|>commentary to=functions.tide <|constrain|>json<|message|>{"port":"Oban"}<|call|>'
CUT = 36  # tokens of CALL that end inside its arguments
TIDE = {"type": "function", "name": "tide", "parameters": {"type": "object"}, "strict": True}

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


async def ask(server: Server, **body: Any) -> httpx.Response:
    """A request; a short text as input by default."""
    return await server.http.post("/v1/responses", json={"input": "tide?"} | body)


async def ask_whole(server: Server, **body: Any) -> dict[str, Any]:
    """The answer to a request that succeeds, checked against the official model."""
    response = await ask(server, **body)
    assert response.status_code == 200, response.text
    Response.model_validate(response.json(), strict=False)
    return response.json()


def read_events(response: httpx.Response) -> list[dict[str, Any]]:
    """A finished stream's events, each checked against the official model, and their numbers against each other."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = []
    for frame in response.text.strip().split("\n\n"):
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        parsed = _EVENT.validate_python(event)
        assert parsed.type == event["type"]
        assert not (parsed.model_extra or {}), f"unknown fields in {event['type']}: {parsed.model_extra}"
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


async def ask_stream(server: Server, **body: Any) -> list[dict[str, Any]]:
    """The events of a streamed answer."""
    return read_events(await ask(server, stream=True, **body))


def names(events: list[dict[str, Any]]) -> list[str]:
    """The events' types without their common beginning, repeats of one delta taken together."""
    types = [event["type"].removeprefix("response.") for event in events]
    return [name for i, name in enumerate(types) if not (i and name == types[i - 1] and name.endswith("delta"))]
