"""`/openapi.json`."""

import re

import pytest

from tests.server.conftest import Serve

pytestmark = pytest.mark.anyio


async def test_every_body_has_its_own_shapes(serve: Serve) -> None:
    async with serve() as server:
        response = await server.http.get("/openapi.json")
    document = response.json()
    shapes = document["components"]["schemas"]
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', response.text))
    assert references <= set(shapes), "no reference leads nowhere"
    for path, name in (
        ("/v1/chat/completions", "ChatCompletionRequest"),
        ("/v1/responses", "ResponsesRequest"),
        ("/v1/messages", "MessagesRequest"),
    ):
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert body["properties"]["tools"]["anyOf"][0]["items"]["$ref"].endswith(f"/{name}.Tool")
    assert "input_schema" in shapes["MessagesRequest.Tool"]["properties"]
    assert "function" in shapes["ChatCompletionRequest.Tool"]["properties"]
