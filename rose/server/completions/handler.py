"""The route of `/v1/completions`: read, check, start the generations, answer streamed or whole."""

import asyncio

import msgspec
from fastapi import APIRouter, Request, Response

from rose.chat.tokenizer import Tokenizer
from rose.errors import RequestError
from rose.server.completions.answer import Answer
from rose.server.completions.batch import start_batch
from rose.server.completions.convert import as_client_named_it, to_generation_requests
from rose.server.completions.kinds import COMPLETION_FIELDS
from rose.server.completions.objects import TextCompletion
from rose.server.completions.schema import CompletionRequest
from rose.server.disconnect import ClientGone, unless_disconnected
from rose.server.errors import CLIENT_CLOSED_REQUEST
from rose.server.generation import GenerationRequest, Generator
from rose.server.intake import Intake, Received
from rose.server.openapi import describe_body
from rose.server.settings import ServerSettings
from rose.server.sse import EventStreamResponse


class Completions:
    """Answers completion requests."""

    def __init__(
        self,
        *,
        generator: Generator,
        tokenizer: Tokenizer,
        intake: Intake,
        settings: ServerSettings,
        system_fingerprint: str,
    ) -> None:
        self._generator = generator
        self._tokenizer = tokenizer
        self._intake = intake
        self._settings = settings
        self._system_fingerprint = system_fingerprint

    def router(self) -> APIRouter:
        """The route, to be put into an app."""
        router = APIRouter()
        extra = describe_body(CompletionRequest, TextCompletion, streams=True)
        router.add_api_route("/v1/completions", self.create, methods=["POST"], response_model=None, openapi_extra=extra)
        return router

    async def create(self, request: Request) -> Response:
        """Continue a text, or several."""
        received = await self._intake.read(request, CompletionRequest, COMPLETION_FIELDS)
        try:
            return await self._answer(request, received)
        except RequestError as error:
            raise as_client_named_it(error) from None
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def _answer(self, request: Request, received: Received[CompletionRequest]) -> Response:
        body, settings = received.body, self._settings
        # In a thread, for long texts take a while to encode and the other streams must go on.
        wanted = await asyncio.to_thread(to_generation_requests, body, self._tokenizer, self._generator.vocab_size)
        if not body.stream:
            whole = await unless_disconnected(request, self._whole(wanted, received))
            return Response(msgspec.json.encode(whole), headers=received.headers, media_type="application/json")
        start = self._start(wanted, received, first_output_wait_s=settings.first_output_wait_s)
        answer = await unless_disconnected(request, start)
        return EventStreamResponse(
            answer.frames(), on_close=answer.close, keep_alive_s=settings.keep_alive_s, headers=received.headers
        )

    async def _whole(self, wanted: list[GenerationRequest], received: Received[CompletionRequest]) -> TextCompletion:
        return await (await self._start(wanted, received)).whole()

    async def _start(
        self,
        wanted: list[GenerationRequest],
        received: Received[CompletionRequest],
        *,
        first_output_wait_s: float | None = None,
    ) -> Answer:
        batch = await start_batch(self._generator, wanted, first_output_wait_s=first_output_wait_s)
        return Answer(batch, received.body, self._tokenizer, model=received.model, fingerprint=self._system_fingerprint)
