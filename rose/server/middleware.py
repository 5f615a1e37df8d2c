"""What happens around every route: request ids, the last line of defence, keys and the limit on bodies.

Plain ASGI, since Starlette's `BaseHTTPMiddleware` puts a queue and a task between a stream and its socket.
"""

import asyncio
import hmac
import re
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rose.server.errors import ApiError, to_api_error

REQUEST_ID_HEADER = "x-request-id"
_SOUND_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}\Z")

OPEN_PATHS = frozenset({"/health", "/ping", "/version", "/metrics", "/docs", "/openapi.json"})


def sound_request_id(given: str | None) -> str | None:
    """A client's own request id, if it can safely stand in a header and in a log line."""
    return given if given and _SOUND_REQUEST_ID.match(given) else None


class RequestContext:
    """Gives every request an id, in and out, and answers an unforeseen exception with a 500 that tells nothing.

    A route may put another id into `scope["state"]["request_id"]` before its answer starts.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = sound_request_id(Headers(scope=scope).get(REQUEST_ID_HEADER))
        state = scope.setdefault("state", {})
        state["request_id"] = given or uuid.uuid4().hex
        state["has_own_request_id"] = given is not None
        has_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                MutableHeaders(scope=message).setdefault(REQUEST_ID_HEADER, state["request_id"])
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            answer = to_api_error(error)
            if not has_started:
                await answer.response(scope)(scope, receive, send_with_id)


class ApiKeys:
    """Lets a request pass if it carries one of the keys, or asks for a path that is open to probes and scrapers."""

    def __init__(self, app: ASGIApp, api_keys: Sequence[str]) -> None:
        self._app = app
        self._keys = tuple(key.encode(errors="surrogateescape") for key in api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request, or answer 401."""
        if scope["type"] != "http" or self._may_pass(scope):
            await self._app(scope, receive, send)
            return
        refusal = ApiError(
            401,
            "give one of the server's API keys as `Authorization: Bearer KEY` or `x-api-key: KEY`",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
        await refusal.response(scope)(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path in OPEN_PATHS or scope["method"] == "OPTIONS":
            return True
        headers = Headers(scope=scope)
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = headers.get("x-api-key", "")  # as Anthropic's clients send it
        # Every key is compared, each in constant time, so that timing tells nothing about them.
        given_key = given.strip().encode("latin-1")  # as its bytes came
        matches = [hmac.compare_digest(given_key, key) for key in self._keys]
        return any(matches)


class BodyLimit:
    """Answers 413 to a body over the limit, at once if its length is declared, and 408 to one that does not arrive."""

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request, or answer 413 or 408."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared) > self._max_bytes:
            await self._too_large().response(scope)(scope, receive, send)
            return
        clock = asyncio.get_running_loop().time
        deadline, num_bytes, is_whole = clock() + self._timeout_s, 0, False

        async def bounded_receive() -> Message:
            nonlocal num_bytes, is_whole
            if is_whole:  # what comes now is the client's departure, which has time
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise self._too_slow() from None
            if message["type"] == "http.request":
                num_bytes += len(message.get("body", b""))
                is_whole = not message.get("more_body", False)
                if num_bytes > self._max_bytes:
                    raise self._too_large()
            return message

        await self._app(scope, bounded_receive, send)

    def _too_slow(self) -> ApiError:
        return ApiError(
            408,
            f"the body did not arrive within {self._timeout_s:g} seconds",
            code="request_timeout",
            headers={"connection": "close"},  # the rest of the body may come yet, and would be taken for a request
        )

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"the body is longer than the {self._max_bytes} bytes that this server takes",
            code="request_too_large",
        )
