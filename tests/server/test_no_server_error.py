"""Whatever stands in a body, of whichever API: an answer or a refusal, never a fault of the server's."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.server.completions.kinds import COMPLETION_FIELDS
from rose.server.completions.schema import CompletionRequest
from rose.server.messages.kinds import MESSAGES_FIELDS
from rose.server.messages.schema import MessagesRequest
from rose.server.responses.kinds import RESPONSES_FIELDS
from rose.server.responses.schema import ResponsesRequest
from tests.server.conftest import Serve

pytestmark = pytest.mark.anyio

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
KINDS = st.sampled_from(
    [
        *("message", "reasoning", "function_call", "function_call_output", "item_reference", "web_search_call"),
        *("text", "input_text", "output_text", "thinking", "tool_use", "tool_result", "function", "json_schema"),
    ]
)
TEXT = st.text(max_size=8) | st.none()
# Things that look like items, blocks, tools and choices, with a part of what these need.
PART = st.fixed_dictionaries(
    {}, optional={"type": KINDS, "text": TEXT, "id": TEXT, "name": TEXT, "input": JSON, "thinking": TEXT}
)
THING = st.fixed_dictionaries(
    {},
    optional={
        "type": KINDS,
        "role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
        "content": TEXT | st.lists(PART, max_size=3),
        "output": TEXT | st.lists(PART, max_size=2),
        "id": TEXT,
        "call_id": st.sampled_from(["a", "b"]),
        "tool_use_id": st.sampled_from(["a", "b"]),
        "name": TEXT,
        "arguments": TEXT,
        "status": TEXT,
        "schema": JSON,
        "input_schema": JSON,
        "parameters": JSON,
    },
)
VALUE = JSON | THING | st.lists(THING, max_size=4)


async def test_a_message_whose_type_is_null_is_stored_as_one_without(serve: Serve) -> None:
    async with serve() as server:
        item = {"type": None, "role": "user", "content": "hi"}
        made = (await server.http.post("/v1/responses", json={"input": [item]})).json()
        assert (await server.http.get(f"/v1/responses/{made['id']}")).json() == made
        listed = (await server.http.get(f"/v1/responses/{made['id']}/input_items")).json()["data"]
        assert [(each["type"], each["content"][0]["text"]) for each in listed] == [("message", "hi")]


@pytest.mark.parametrize(
    ("path", "fields", "base"),
    [
        ("/v1/responses", [*ResponsesRequest.model_fields, *RESPONSES_FIELDS.unsupported], {"input": "hi"}),
        ("/v1/completions", [*CompletionRequest.model_fields, *COMPLETION_FIELDS.unsupported], {"prompt": "hi"}),
        (
            "/v1/messages",
            [*MessagesRequest.model_fields, *MESSAGES_FIELDS.unsupported],
            {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
        ),
    ],
)
@settings(max_examples=40)
@given(data=st.data())
async def test_no_value_of_any_field_is_a_server_error(
    serve: Serve, path: str, fields: list[str], base: dict[str, Any], data: st.DataObject
) -> None:
    body = base | data.draw(st.dictionaries(st.sampled_from(fields), VALUE, max_size=4))
    async with serve() as server:
        response = await server.http.post(path, json=body)
        if body.get("background") and response.status_code == 200:
            await server.http.post(f"/v1/responses/{response.json()['id']}/cancel")
    assert response.status_code in (200, 400, 404), response.text
