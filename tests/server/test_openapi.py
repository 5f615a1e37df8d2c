"""`/openapi.json`."""

import re
from typing import Any

import jsonschema
import pytest

from rose.engine.messages import RequestFailure
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


ANSWERED: list[tuple[str, str, dict[str, Any] | None]] = [
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "logprobs": True}),
    ("POST", "/v1/completions", {"prompt": "hi", "logprobs": 2, "max_tokens": 99}),
    ("POST", "/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 99}),
    ("POST", "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}]}),
    ("POST", "/v1/responses", {"input": "hi"}),
    ("POST", "/tokenize", {"prompt": "hi", "return_token_strs": True}),
    ("POST", "/detokenize", {"tokens": [1, 2]}),
    ("GET", "/v1/models", None),
    ("GET", "/version", None),
    ("GET", "/health", None),
    ("GET", "/metrics", None),
]


@pytest.mark.parametrize(("method", "path", "body"), ANSWERED)
async def test_answers_and_errors_have_the_documents_shape(
    serve: Serve, method: str, path: str, body: dict[str, Any] | None
) -> None:
    async with serve(
        "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>4."
    ) as server:
        document = (await server.http.get("/openapi.json")).json()
        responses = document["paths"][path][method.lower()]["responses"]
        assert set(responses) == {"200", "4XX", "5XX"}
        whole = await server.http.request(method, path, json=body)
        answers = [(whole, responses["200"])]
        if body is not None:
            answers.append((await server.http.post(path, json=body | {"model": 7}), responses["4XX"]))
            server.engine.script = lambda _: [RequestFailure(message="no", code="model_error")]
            failed = await server.http.post(path, json=body)
            answers.append((failed, responses["5XX"] if failed.status_code == 500 else responses["200"]))
            if "text/event-stream" in responses["200"]["content"]:
                server.engine.script = lambda _: [[1]]
                stream = await server.http.post(path, json=body | {"stream": True})
                assert stream.headers["content-type"].startswith("text/event-stream")
    assert whole.status_code == 200, whole.text
    for answer, described in answers:
        kind = answer.headers.get("content-type", "").split(";")[0]
        content = described.get("content", {})
        if kind == "application/json":
            schema = content[kind]["schema"] | {"components": document["components"]}
            jsonschema.validate(answer.json(), schema)
        else:
            assert (kind in content) or (not kind and not content)


LIMITED: list[tuple[str, dict[str, Any]]] = [(path, body) for _, path, body in ANSWERED if body is not None]


@pytest.mark.parametrize(("path", "body"), LIMITED)
async def test_the_limits_in_the_document_are_those_that_are_kept(
    serve: Serve, path: str, body: dict[str, Any]
) -> None:
    async with serve() as server:
        document = (await server.http.get("/openapi.json")).json()
        content = document["paths"][path]["post"]["requestBody"]["content"]
        properties = content["application/json"]["schema"]["properties"]
        assert properties["model"]["enum"] == ["rose-test", "an/alias", None]
        num_checked = 0
        for name, schema in properties.items():
            for bound, step in (("minimum", -1), ("maximum", 1)):
                if bound not in schema:
                    continue
                is_whole = "integer" in {kind.get("type") for kind in schema.get("anyOf", [schema])}
                limit = int(schema[bound]) if is_whole else schema[bound]
                needed = {"logprobs": True} if name == "top_logprobs" else {"n": limit} if name == "best_of" else {}
                kept = await server.http.post(path, json=body | needed | {name: limit})
                assert kept.status_code == 200, (name, kept.text)
                broken = await server.http.post(path, json=body | needed | {name: limit + step})
                assert broken.status_code == 400, (name, limit + step)
                num_checked += 1
    assert (num_checked > 0) == (path in ("/v1/chat/completions", "/v1/completions", "/v1/messages"))
