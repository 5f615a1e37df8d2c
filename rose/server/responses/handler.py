"""The routes of `/v1/responses`: create, retrieve, delete, cancel, and list the input."""

import asyncio
from collections.abc import AsyncGenerator, Collection
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi import Response as HttpResponse

from rose.chat.tokenizer import Tokenizer
from rose.errors import RequestError
from rose.server.builtin_tools.toolbox import Toolbox
from rose.server.disconnect import ClientGone, unless_disconnected
from rose.server.errors import CLIENT_CLOSED_REQUEST, ApiError, unsupported
from rose.server.generation import Generator
from rose.server.intake import Intake, Received
from rose.server.openapi import describe_body
from rose.server.responses.convert import as_client_named_it, ignored_inside
from rose.server.responses.event_log import EventLog, EventLogs, frame
from rose.server.responses.events import StreamEvent
from rose.server.responses.kinds import RESPONSES_FIELDS
from rose.server.responses.making import Order, ResponseMaker
from rose.server.responses.objects import Response, as_shown
from rose.server.responses.run import ResponseRun
from rose.server.responses.schema import ResponsesRequest
from rose.server.responses.store import ResponseStore, StoredResponse
from rose.server.settings import ServerSettings
from rose.server.sse import EventStreamResponse

_encoder = msgspec.json.Encoder()


class Responses:
    """Answers Responses API requests."""

    def __init__(
        self,
        *,
        generator: Generator,
        tokenizer: Tokenizer,
        intake: Intake,
        settings: ServerSettings,
        store: ResponseStore,
    ) -> None:
        self._toolbox = Toolbox.of(settings.tools)
        self._maker = ResponseMaker(
            generator=generator, tokenizer=tokenizer, settings=settings, store=store, toolbox=self._toolbox
        )
        self._intake = intake
        self._settings = settings
        self._store = store
        self._runs: dict[str, ResponseRun] = {}
        self._logs = EventLogs()
        self._background: set[asyncio.Task[None]] = set()  # a task that nobody holds may vanish

    def router(self) -> APIRouter:
        """The routes, to be put into an app."""
        router = APIRouter()
        path = "/v1/responses"
        extra = describe_body(ResponsesRequest, Response, streams=True)
        router.add_api_route(path, self.create, methods=["POST"], response_model=None, openapi_extra=extra)
        router.add_api_route(f"{path}/{{response_id}}", self.retrieve, response_model=None)
        router.add_api_route(f"{path}/{{response_id}}", self.delete, methods=["DELETE"])
        router.add_api_route(f"{path}/{{response_id}}/cancel", self.cancel, methods=["POST"], response_model=None)
        router.add_api_route(f"{path}/{{response_id}}/input_items", self.list_input_items)
        return router

    async def create(self, request: Request) -> HttpResponse:
        """Make a response."""
        received = await self._intake.read(
            request, ResponsesRequest, RESPONSES_FIELDS, lambda body: ignored_inside(body, self._toolbox)
        )
        try:
            return await self._answer(request, received)
        except RequestError as error:
            raise as_client_named_it(error) from None
        except ClientGone:
            return HttpResponse(status_code=CLIENT_CLOSED_REQUEST)

    async def retrieve(
        self,
        response_id: str,
        stream: bool = False,
        starting_after: Annotated[int | None, Query(ge=0)] = None,
        include: Annotated[list[str] | None, Query()] = None,
        included: Annotated[list[str] | None, Query(alias="include[]")] = None,
    ) -> HttpResponse:
        """A stored response, or one that is being made in the background; or the events of one that was streamed there.

        starting_after: the number of the last event that the reader has. included: as OpenAI's clients write a list.
        """
        if stream:
            log = self._logs.get(response_id)
            if log is None:
                await self._stored(response_id)
                message = "only a response that was made with background and stream, and lately, has events to stream"
                raise unsupported("stream", message)
            return self._stream(log, -1 if starting_after is None else starting_after)
        stored = (await self._stored(response_id)).response
        return _json(self._as_it_is_now(_shown(stored, {*(include or ()), *(included or ())})))

    async def delete(self, response_id: str) -> dict[str, Any]:
        """Forget a stored response. One that is being made is cancelled, or it would be stored anew."""
        if (run := self._runs.get(response_id)) is not None:
            await run.cancel()
        self._logs.forget(response_id)
        if not await self._store.delete(response_id):
            raise _not_found(response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    async def cancel(self, response_id: str) -> HttpResponse:
        """End a response that is being made, in the background or not. One that has ended stays as it is."""
        run = self._runs.get(response_id)
        if run is not None:
            return _json(await run.cancel())
        return _json(self._as_it_is_now(_shown((await self._stored(response_id)).response)))

    async def list_input_items(
        self,
        response_id: str,
        order: Literal["asc", "desc"] = "desc",
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        after: str | None = None,
    ) -> dict[str, Any]:
        """The items that a response's own request brought; those of the responses before it are in theirs."""
        items = [as_shown(item, ()) for item in (await self._stored(response_id)).input]
        items = items if order == "asc" else items[::-1]
        ids = [item["id"] for item in items]
        start = ids.index(after) + 1 if after in ids else 0
        page = items[start : start + limit]
        return {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": start + limit < len(items),
        }

    async def _answer(self, request: Request, received: Received[ResponsesRequest]) -> HttpResponse:
        body, settings = received.body, self._settings
        order = await self._maker.read(received)
        if body.background and settings.num_api_servers > 1:  # each process knows its own runs only
            raise unsupported("background", "background responses need a server with --api-server-count 1")
        if body.background:
            return await self._answer_in_background(order, received.headers, is_streamed=bool(body.stream))
        if not body.stream:
            whole = await unless_disconnected(request, self._complete(order))
            return _json(whole, received.headers)
        start = self._start(order, first_output_wait_s=settings.first_output_wait_s)
        run = await unless_disconnected(request, start)
        return EventStreamResponse(
            _frames(run), on_close=run.close, keep_alive_s=settings.keep_alive_s, headers=received.headers
        )

    async def _answer_in_background(self, order: Order, headers: dict[str, str], *, is_streamed: bool) -> HttpResponse:
        run = await self._start(order, first_output_wait_s=0.0)
        try:
            await self._maker.keep(run.response, order)
        except BaseException:
            await run.close()
            raise
        log = self._logs.open(run.response.id) if is_streamed else None
        task = asyncio.create_task(self._run_in_background(run, log))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return _json(run.response, headers) if log is None else self._stream(log, -1, headers)

    async def _run_in_background(self, run: ResponseRun, log: EventLog | None) -> None:
        try:
            await run.complete_in_background(_tell_nobody if log is None else log.append)
        finally:
            if log is not None:
                log.end()
                self._logs.close(run.response.id)

    def _stream(self, log: EventLog, starting_after: int, headers: dict[str, str] | None = None) -> HttpResponse:
        """The events of a response in the background. A reader that goes away ends nothing."""
        return EventStreamResponse(
            log.follow(starting_after), on_close=_nothing, keep_alive_s=self._settings.keep_alive_s, headers=headers
        )

    async def _start(self, order: Order, *, first_output_wait_s: float | None = None) -> ResponseRun:
        run = await self._maker.start(order, on_end=self._forget_run, first_output_wait_s=first_output_wait_s)
        self._runs[run.response.id] = run
        return run

    def _forget_run(self, response_id: str) -> None:
        self._runs.pop(response_id, None)

    async def _complete(self, order: Order) -> Response:
        return await (await self._start(order)).complete()

    async def _stored(self, response_id: str) -> StoredResponse:
        record = await self._store.get(response_id)
        if record is None:
            raise _not_found(response_id)
        return record

    def _as_it_is_now(self, response: dict[str, Any]) -> dict[str, Any]:
        """A response that was being made when its server ended will never be complete: it has failed."""
        if response["status"] != "in_progress" or response["id"] in self._runs:
            return response
        error = {"code": "server_error", "message": "the server ended before the response was complete"}
        return response | {"status": "failed", "error": error}


async def _frames(run: ResponseRun) -> AsyncGenerator[bytes, None]:
    async for events in run.events_to_the_end():
        yield b"".join([frame(event) for event in events])


def _tell_nobody(_: list[StreamEvent]) -> None:
    """For a response of which nobody reads the events."""


async def _nothing() -> None:
    """A reader went away."""


def _shown(response: dict[str, Any], include: Collection[str] = ()) -> dict[str, Any]:
    """A stored response without what its reader does not ask for."""
    return response | {"output": [as_shown(item, include) for item in response["output"]]}


def _json(answer: Response | dict[str, Any], headers: dict[str, str] | None = None) -> HttpResponse:
    return HttpResponse(_encoder.encode(answer), headers=headers, media_type="application/json")


def _not_found(response_id: str) -> ApiError:
    return ApiError(404, f"there is no response {response_id!r} here (any more)", code="not_found")
