"""Request bodies in `/openapi.json`. Routes read their body themselves, so FastAPI does not know its shape."""

from typing import Any

import pydantic
from fastapi import FastAPI

_SCHEMA_REF = "#/components/schemas/"
_DEFINITIONS = "x-rose-definitions"


def describe_body(model: type[pydantic.BaseModel]) -> dict[str, Any]:
    """A route's `openapi_extra` for a JSON body of this shape.

    The shapes inside are named after the body, since each API has a `Tool` of its own.
    """
    prefix = f"{model.__name__}."
    schema = model.model_json_schema(ref_template=f"{_SCHEMA_REF}{prefix}{{model}}")
    definitions = {prefix + name: shape for name, shape in schema.pop("$defs", {}).items()}
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        _DEFINITIONS: definitions,
    }


def collect_definitions(app: FastAPI) -> None:
    """Make the app's OpenAPI document hold the shapes that `describe_body` refers to."""
    make_document = app.openapi

    def openapi() -> dict[str, Any]:
        document = make_document()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for operations in document.get("paths", {}).values():
            for operation in operations.values():
                schemas.update(operation.pop(_DEFINITIONS, {}))
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way
