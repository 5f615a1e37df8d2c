"""The routes of `/v1/messages`: answer, streamed or whole, and count a prompt's tokens."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from fastapi import APIRouter, Request, Response

from rose.errors import RequestError
from rose.server.disconnect import ClientGone, unless_disconnected
from rose.server.errors import CLIENT_CLOSED_REQUEST, to_api_error
from rose.server.generation import Generation, GenerationRequest, Generator
from rose.server.intake import Intake, Received
from rose.server.messages.convert import as_client_named_it, ignored_inside, to_conversation, to_generation_request
from rose.server.messages.kinds import MESSAGES_FIELDS
from rose.server.messages.objects import Message, StreamEvent, TokenCount
from rose.server.messages.schema import CountTokensRequest, MessagesRequest
from rose.server.messages.writer import MessageWriter
from rose.server.openapi import describe_body
from rose.server.settings import ServerSettings
from rose.server.sse import EventStreamResponse, sse_event

_encoder = msgspec.json.Encoder()


class Messages:
    """Answers Messages API requests."""

    def __init__(self, *, generator: Generator, intake: Intake, settings: ServerSettings) -> None:
        self._generator = generator
        self._intake = intake
        self._settings = settings

    def router(self) -> APIRouter:
        """The routes, to be put into an app."""
        router = APIRouter()
        for path, endpoint, extra in (
            ("/v1/messages", self.create, describe_body(MessagesRequest, Message, streams=True)),
            ("/v1/messages/count_tokens", self.count_tokens, describe_body(CountTokensRequest, TokenCount)),
        ):
            router.add_api_route(path, endpoint, methods=["POST"], response_model=None, openapi_extra=extra)
        return router

    async def create(self, request: Request) -> Response:
        """Answer a chat."""
        received = await self._intake.read(request, MessagesRequest, MESSAGES_FIELDS, ignored_inside)
        received.headers["request-id"] = request.state.request_id  # where Anthropic's clients look for it
        try:
            return await self._answer(request, received)
        except RequestError as error:
            raise as_client_named_it(error) from None
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def count_tokens(self, request: Request) -> Response:
        """The length of a chat's prompt."""
        received = await self._intake.read(request, CountTokensRequest, MESSAGES_FIELDS, ignored_inside)
        conversation = to_conversation(received.body, current_date=self._settings.prompt_date())
        count = TokenCount(len(await self._generator.render(conversation)))
        return Response(_encoder.encode(count), headers=received.headers, media_type="application/json")

    async def _answer(self, request: Request, received: Received[MessagesRequest]) -> Response:
        body, settings = received.body, self._settings
        wanted = to_generation_request(body, current_date=settings.prompt_date())
        if not body.stream:
            message = await unless_disconnected(request, self._whole(wanted, received))
            return Response(_encoder.encode(message), headers=received.headers, media_type="application/json")
        start = self._generator.start(wanted, first_output_wait_s=settings.first_output_wait_s)
        generation = await unless_disconnected(request, start)
        return EventStreamResponse(
            _frames(generation, received),
            on_close=generation.close,
            keep_alive_s=settings.keep_alive_s,
            headers=received.headers,
        )

    async def _whole(self, wanted: GenerationRequest, received: Received[MessagesRequest]) -> Message:
        generation = await self._generator.start(wanted)
        writer = _writer(generation, received)
        async for _ in _events(generation, writer, received.body):
            pass
        return writer.message


def _writer(generation: Generation, received: Received[MessagesRequest]) -> MessageWriter:
    """The writer of an answer. Only those who asked see the thinking: others expect no block before the text."""
    thinking = received.body.thinking
    return MessageWriter(
        received.model,
        num_prompt_tokens=len(generation.prompt_token_ids),
        shows_thinking=thinking is not None and thinking.type != "disabled",
    )


async def _events(
    generation: Generation, writer: MessageWriter, body: MessagesRequest
) -> AsyncGenerator[list[StreamEvent], None]:
    """What happens, in pieces that belong together. Raises what the generation raises."""
    yield list(writer.opening())
    async with aclosing(generation.deltas()) as deltas:
        async for delta in deltas:
            if events := list(writer.events(delta)):
                yield events
    yield list(writer.finish(generation.usage, stop_string=generation.stop_string(), max_tokens=body.max_tokens))


async def _frames(generation: Generation, received: Received[MessagesRequest]) -> AsyncGenerator[bytes, None]:
    """The events of the stream. Headers are long gone here, so a failure becomes an event."""
    try:
        async with aclosing(_events(generation, _writer(generation, received), received.body)) as pieces:
            async for events in pieces:
                yield b"".join([sse_event(event.event_type, _encoder.encode(event)) for event in events])
    except Exception as error:
        yield sse_event("error", to_api_error(error).anthropic_body())
