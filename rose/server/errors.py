"""Every error the server answers with, in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

`code` is a short string or null as in OpenAI's API, never the HTTP number. The Messages API has Anthropic's shape.
"""

import logging
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import pydantic
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from rose.errors import EngineDead, RequestError
from rose.log import get_logger

logger = get_logger(__name__)

Model = TypeVar("Model", bound=pydantic.BaseModel)

# Every escape, from left to right: in `\\ud800` the first two characters are one.
_ESCAPES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)
CLIENT_CLOSED_REQUEST = 499  # nginx's number; nobody is there to read it

_ANTHROPIC_ROUTES = "/v1/messages"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_STATUS_TYPES = {429: "rate_limit_exceeded"}


class ErrorObject(msgspec.Struct, frozen=True, kw_only=True):
    """The inside of an error body."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """An error body, and the data of an error event inside a stream."""

    error: ErrorObject


class AnthropicErrorObject(msgspec.Struct, frozen=True):
    """The inside of an error body of Anthropic's shape, which has no place for a field's name."""

    type: str
    message: str


class AnthropicErrorBody(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """An error body of Anthropic's shape."""

    error: AnthropicErrorObject
    request_id: str | None = None


class ApiError(Exception):
    """An error with its HTTP status, ready to be sent."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers

    def body(self) -> bytes:
        """The JSON to send."""
        kind = _STATUS_TYPES.get(self.status) or ("server_error" if self.status >= 500 else "invalid_request_error")
        error = ErrorObject(message=self.message, type=kind, param=self.param, code=self.code)
        return msgspec.json.encode(ErrorBody(error=error))

    def anthropic_body(self, request_id: str | None = None) -> bytes:
        """The JSON to send where Anthropic's clients read it, and the data of an error event in their streams."""
        kind = _ANTHROPIC_TYPES.get(self.status) or ("api_error" if self.status >= 500 else "invalid_request_error")
        message = f"{self.param}: {self.message}" if self.param and self.param not in self.message else self.message
        return msgspec.json.encode(AnthropicErrorBody(AnthropicErrorObject(kind, message), request_id))

    def response(self, scope: Scope | None = None) -> Response:
        """The whole HTTP answer, in the shape of the API that the request `scope` is of."""
        if scope is None or not is_anthropic(scope):
            return Response(self.body(), self.status, self.headers, media_type="application/json")
        request_id = scope.get("state", {}).get("request_id")
        headers = (self.headers or {}) | ({"request-id": request_id} if request_id else {})
        return Response(self.anthropic_body(request_id), self.status, headers, media_type="application/json")


def is_anthropic(scope: Scope) -> bool:
    """Whether a request is of the Messages API, whose clients read errors of another shape."""
    return is_anthropic_path(scope["path"].removeprefix(scope.get("root_path", "")))


def is_anthropic_path(path: str) -> bool:
    """Whether a route is of the Messages API."""
    return path == _ANTHROPIC_ROUTES or path.startswith(f"{_ANTHROPIC_ROUTES}/")


def to_api_error(error: BaseException) -> ApiError:
    """What the client is told about `error`. What is not meant for it is logged, and told as a plain 500."""
    match error:
        case ApiError():
            return error
        case RequestError():
            return ApiError(400, error.message, param=error.param, code=error.code)
        case EngineDead():
            logger.error("the engine is gone: %s", error)
            return ApiError(503, "the engine is not running", code="engine_dead")
        case HTTPException():
            code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
            return ApiError(error.status_code, str(error.detail), code=code, headers=dict(error.headers or {}))
        case RequestValidationError():
            fault = error.errors()[0]
            param = field_path(fault["loc"][1:])  # the first part says where the parameter stands
            return ApiError(400, f"{param}: {fault['msg']}", param=param, code=_fault_code(fault["type"]))
        case ClientDisconnect():
            return ApiError(CLIENT_CLOSED_REQUEST, "the client closed its connection before its request was whole")
        case _:
            logger.log(logging.ERROR, "a request failed inside the server", exc_info=error)
            return ApiError(500, "an internal error occurred; the server's log has the details", code="internal_error")


def unsupported(param: str, message: str) -> RequestError:
    """The refusal of a field that is understood and cannot be honoured."""
    return RequestError(message, param=param, code="unsupported_parameter")


def model_not_found(name: str, served: Sequence[str]) -> ApiError:
    """The answer to a model name that is not served here."""
    return ApiError(
        404,
        f"the model {name!r} is not served here; there is {', '.join(map(repr, served))}",
        param="model",
        code="model_not_found",
    )


def parse_body(model: type[Model], body: bytes) -> Model:
    """The validated body, or a `RequestError` that tells every fault in it and names the first one's field."""
    try:
        return model.model_validate_json(body)
    except pydantic.ValidationError as error:
        repaired = _without_lone_surrogates(body)
        if repaired != body:
            return parse_body(model, repaired)
        raise _request_error(error) from None


def _without_lone_surrogates(body: bytes) -> bytes:
    r"""The JSON with U+FFFD for escapes of half a surrogate pair, which are no text.

    Clients in JavaScript send such when they cut a string inside a character, and would send it again with every turn.
    """
    return _ESCAPES.sub(lambda escape: rb"\ufffd" if escape["half"] else escape[0], body)


def _request_error(error: pydantic.ValidationError) -> RequestError:
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    first = faults[0]
    if first["type"] == "json_invalid":
        return RequestError(f"the body is not valid JSON: {first['msg']}", code="invalid_json")
    if not first["loc"]:
        return RequestError("the body must be a JSON object", code="invalid_type")
    text = "; ".join(f"{field_path(fault['loc'])}: {fault['msg']}" for fault in faults[:16])
    if len(faults) > 16:
        text += f"; and {len(faults) - 16} more"
    return RequestError(text, param=field_path(first["loc"]), code=_fault_code(first["type"]))


def field_path(loc: Sequence[str | int]) -> str:
    """A pydantic location as OpenAI writes it: `messages[0].content`. Tags in angle brackets name no field."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.startswith("<"):
            continue
        elif part == "[key]":
            path += part
        else:
            path += f".{part}" if path else part
    return path


def _fault_code(pydantic_type: str) -> str:
    if pydantic_type == "missing":
        return "missing_required_parameter"
    if pydantic_type.endswith(("_type", "_parsing", "_from_float")):
        return "invalid_type"
    return "invalid_value"


def add_error_handlers(app: FastAPI) -> None:
    """Answer everything that goes wrong inside a route in the one shape."""

    async def answer(request: Request, error: Exception) -> Response:
        return to_api_error(error).response(request.scope)

    kinds: tuple[Any, ...] = (
        ApiError,
        RequestError,
        EngineDead,
        HTTPException,
        RequestValidationError,
        ClientDisconnect,
    )
    for kind in kinds:
        app.add_exception_handler(kind, answer)
