"""What FastAPI cannot know of `/openapi.json`: routes read their bodies themselves, and write their answers."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pydantic
from fastapi import FastAPI

from rose.server.errors import AnthropicErrorBody, ErrorBody, is_anthropic_path

_SCHEMA_REF = "#/components/schemas/"
_DEFINITIONS = "x-rose-definitions"
_JSON = "application/json"


def describe_body(
    body: type[pydantic.BaseModel], answer: type[msgspec.Struct] | None = None, *, streams: bool = False
) -> dict[str, Any]:
    """A route's `openapi_extra` for a JSON body of this shape, and an answer of that one.

    streams: the answer may be a stream of events instead. The shapes inside are named after the body or the answer,
    since each API has a `Tool` and a `Usage` of its own.
    """
    prefix = f"{body.__name__}."
    schema = body.model_json_schema(ref_template=f"{_SCHEMA_REF}{prefix}{{model}}")
    definitions = {prefix + name: shape for name, shape in schema.pop("$defs", {}).items()}
    described = {"requestBody": {"required": True, "content": {_JSON: {"schema": schema}}}, _DEFINITIONS: definitions}
    if answer is not None:
        answer_schema, shapes = _struct_schema(answer)
        definitions |= shapes
        content = {_JSON: {"schema": answer_schema}}
        if streams:
            content["text/event-stream"] = {"schema": {"description": "Server-sent events."}}
        described["responses"] = {"200": {"description": "The answer.", "content": content}}
    return described


def complete_document(app: FastAPI, model_names: Sequence[str]) -> None:
    """Make the app's OpenAPI document hold the shapes that `describe_body` refers to, and every route's errors.

    model_names: those that are served, the only ones that a body's `model` may have.
    """
    make_document = app.openapi

    def openapi() -> dict[str, Any]:
        document = make_document()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for path, operations in document.get("paths", {}).items():
            error, shapes = _struct_schema(AnthropicErrorBody if is_anthropic_path(path) else ErrorBody)
            schemas.update(shapes)
            for operation in operations.values():
                for content in operation.get("requestBody", {}).get("content", {}).values():
                    if (model := content["schema"]["properties"].get("model")) is not None:
                        model["enum"] = [*model_names, None]
                schemas.update(operation.pop(_DEFINITIONS, {}))
                operation["responses"].pop("422", None)  # FastAPI's own refusal, instead of which there is a 400
                for status, what in (("4XX", "A refusal."), ("5XX", "A fault of the server's.")):
                    operation["responses"][status] = {"description": what, "content": {_JSON: {"schema": error}}}
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way


def _struct_schema(struct: type[msgspec.Struct]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The reference to a struct's schema, and by their names all schemas that it needs."""
    prefix = f"{struct.__name__}."
    (schema,), shapes = msgspec.json.schema_components([struct], ref_template=f"{_SCHEMA_REF}{prefix}{{name}}")
    return schema, {prefix + name: shape for name, shape in shapes.items()}
