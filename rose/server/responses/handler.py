"""The routes of `/v1/responses`: create, retrieve, delete, cancel, and list the input."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi import Response as HttpResponse

from rose.chat.answer_format import ToolChoice
from rose.chat.tokenizer import Tokenizer
from rose.errors import RequestError
from rose.server.disconnect import ClientGone, unless_disconnected
from rose.server.errors import CLIENT_CLOSED_REQUEST, ApiError, unsupported
from rose.server.generation import GenerationRequest, Generator
from rose.server.intake import Intake, Received
from rose.server.logprobs import LogprobSpeller
from rose.server.openapi import describe_body
from rose.server.responses.convert import (
    as_client_named_it,
    check,
    ignored_inside,
    to_conversation,
    to_response,
    to_sampling_params,
    to_tool_choice,
)
from rose.server.responses.items import as_items, check_parts, to_messages, to_stored
from rose.server.responses.kinds import RESPONSES_FIELDS
from rose.server.responses.objects import Response
from rose.server.responses.run import ResponseRun
from rose.server.responses.schema import STORED_ITEMS, InputItem, ItemReference, ResponsesRequest
from rose.server.responses.store import ResponseStore, StoredResponse, read_history
from rose.server.responses.truncate import drop_oldest_turns
from rose.server.responses.writer import ResponseWriter
from rose.server.settings import ServerSettings
from rose.server.sse import EventStreamResponse, sse_event

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
        self._generator = generator
        self._speller = LogprobSpeller(tokenizer)
        self._intake = intake
        self._settings = settings
        self._store = store
        self._runs: dict[str, ResponseRun] = {}
        self._background: set[asyncio.Task[None]] = set()  # a task that nobody holds may vanish

    def router(self) -> APIRouter:
        """The routes, to be put into an app."""
        router = APIRouter()
        path = "/v1/responses"
        router.add_api_route(
            path, self.create, methods=["POST"], response_model=None, openapi_extra=describe_body(ResponsesRequest)
        )
        router.add_api_route(f"{path}/{{response_id}}", self.retrieve, response_model=None)
        router.add_api_route(f"{path}/{{response_id}}", self.delete, methods=["DELETE"])
        router.add_api_route(f"{path}/{{response_id}}/cancel", self.cancel, methods=["POST"], response_model=None)
        router.add_api_route(f"{path}/{{response_id}}/input_items", self.list_input_items)
        return router

    async def create(self, request: Request) -> HttpResponse:
        """Make a response."""
        received = await self._intake.read(request, ResponsesRequest, RESPONSES_FIELDS, ignored_inside)
        try:
            return await self._answer(request, received)
        except RequestError as error:
            raise as_client_named_it(error) from None
        except ClientGone:
            return HttpResponse(status_code=CLIENT_CLOSED_REQUEST)

    async def retrieve(self, response_id: str, stream: bool = False) -> HttpResponse:
        """A stored response, or one that is being made in the background."""
        if stream:
            raise RequestError("a stored response cannot be streamed", param="stream", code="unsupported_parameter")
        return _json(self._as_it_is_now((await self._stored(response_id)).response))

    async def delete(self, response_id: str) -> dict[str, Any]:
        """Forget a stored response."""
        if not await self._store.delete(response_id):
            raise _not_found(response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    async def cancel(self, response_id: str) -> HttpResponse:
        """End a response that is being made, in the background or not. One that has ended stays as it is."""
        run = self._runs.get(response_id)
        if run is not None:
            return _json(await run.cancel())
        return _json(self._as_it_is_now((await self._stored(response_id)).response))

    async def list_input_items(
        self,
        response_id: str,
        order: Literal["asc", "desc"] = "desc",
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        after: str | None = None,
    ) -> dict[str, Any]:
        """The items that a response's own request brought; those of the responses before it are in theirs."""
        items = (await self._stored(response_id)).input
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
        check(body)
        items = await self._own_items(body)
        wanted = await self._wanted(body, items)
        response = to_response(body, model=received.model, default=wanted.sampling_params)
        if not self._store.keeps:
            response = msgspec.structs.replace(response, store=False)
        if body.background and settings.num_api_servers > 1:  # each process knows its own runs only
            raise unsupported("background", "background responses need a server with --api-server-count 1")
        if body.background:
            run = await self._start(wanted, response, items, first_output_wait_s=0.0)
            try:
                await self._keep(run.response, items)
            except BaseException:
                await run.close()
                raise
            task = asyncio.create_task(run.complete_in_background())
            self._background.add(task)
            task.add_done_callback(self._background.discard)
            return _json(run.response, received.headers)
        if not body.stream:
            whole = await unless_disconnected(request, self._complete(wanted, response, items))
            return _json(whole, received.headers)
        start = self._start(wanted, response, items, first_output_wait_s=settings.first_output_wait_s)
        run = await unless_disconnected(request, start)
        return EventStreamResponse(
            _frames(run), on_close=run.close, keep_alive_s=settings.keep_alive_s, headers=received.headers
        )

    async def _own_items(self, body: ResponsesRequest) -> list[InputItem]:
        """The request's items, with what is known of those that it only refers to."""
        given = as_items(body.input)
        check_parts(given)
        items: list[InputItem] = []
        for item in given:
            if isinstance(item, ItemReference):
                found = await self._store.find_item(item.id)
                items += STORED_ITEMS.validate_python([found]) if found is not None else ()
            else:
                items.append(item)
        return items

    async def _wanted(self, body: ResponsesRequest, items: list[InputItem]) -> GenerationRequest:
        history = STORED_ITEMS.validate_python(await read_history(self._store, body.previous_response_id))
        params = to_sampling_params(body)
        conversation = to_conversation(body, to_messages([*history, *items]), current_date=self._settings.prompt_date())
        if not conversation.messages:
            raise RequestError("input must not be empty", param="input", code="invalid_value")
        if body.truncation == "auto":
            room = self._generator.max_model_len - (params.max_tokens or 1)
            conversation = await drop_oldest_turns(conversation, self._generator.render, room)
        return GenerationRequest(
            conversation=conversation,
            sampling_params=params,
            tool_choice=to_tool_choice(body) or ToolChoice(),
        )

    async def _start(
        self,
        wanted: GenerationRequest,
        response: Response,
        items: list[InputItem],
        *,
        first_output_wait_s: float | None = None,
    ) -> ResponseRun:
        generation = await self._generator.start(wanted, first_output_wait_s=first_output_wait_s)
        run = ResponseRun(
            generation,
            ResponseWriter(response, self._speller),
            save=lambda ended: self._keep(ended, items),
            on_end=self._forget_run,
        )
        self._runs[response.id] = run
        return run

    def _forget_run(self, response_id: str) -> None:
        del self._runs[response_id]

    async def _complete(self, wanted: GenerationRequest, response: Response, items: list[InputItem]) -> Response:
        return await (await self._start(wanted, response, items)).complete()

    async def _keep(self, response: Response, items: list[InputItem]) -> None:
        if response.store:
            record = StoredResponse(
                id=response.id,
                previous_response_id=response.previous_response_id,
                response=msgspec.to_builtins(response),
                input=to_stored(items),
            )
            await self._store.put(record)

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
        yield b"".join([sse_event(event.event_type, _encoder.encode(event)) for event in events])


def _json(answer: Response | dict[str, Any], headers: dict[str, str] | None = None) -> HttpResponse:
    return HttpResponse(_encoder.encode(answer), headers=headers, media_type="application/json")


def _not_found(response_id: str) -> ApiError:
    return ApiError(404, f"there is no response {response_id!r} here (any more)", code="not_found")
