"""The route of `/v1/chat/completions`: read, check, start the generation, answer streamed or whole."""

import msgspec
from fastapi import APIRouter, Request, Response

from rose.chat.tokenizer import Tokenizer
from rose.errors import RequestError
from rose.server.chat_completions.answer import AnswerStyle
from rose.server.chat_completions.chunks import ChatCompletion
from rose.server.chat_completions.convert import as_client_named_it, to_generation_request, unknown_template_kwargs
from rose.server.chat_completions.kinds import CHAT_FIELDS
from rose.server.chat_completions.schema import ChatCompletionRequest
from rose.server.chat_completions.stream import stream_answer
from rose.server.chat_completions.whole import whole_answer
from rose.server.disconnect import ClientGone, unless_disconnected
from rose.server.errors import CLIENT_CLOSED_REQUEST
from rose.server.generation import Generator
from rose.server.intake import Intake, Received
from rose.server.logprobs import LogprobSpeller
from rose.server.openapi import describe_body
from rose.server.settings import ServerSettings
from rose.server.sse import EventStreamResponse


class ChatCompletions:
    """Answers chat completion requests."""

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
        self._speller = LogprobSpeller(tokenizer)
        self._intake = intake
        self._settings = settings
        self._system_fingerprint = system_fingerprint

    def router(self) -> APIRouter:
        """The route, to be put into an app."""
        router = APIRouter()
        router.add_api_route(
            "/v1/chat/completions",
            self.create,
            methods=["POST"],
            response_model=None,
            openapi_extra=describe_body(ChatCompletionRequest, ChatCompletion, streams=True),
        )
        return router

    async def create(self, request: Request) -> Response:
        """Answer a chat."""
        received = await self._intake.read(request, ChatCompletionRequest, CHAT_FIELDS, unknown_template_kwargs)
        try:
            return await self._answer(request, received)
        except RequestError as error:
            raise as_client_named_it(error, received.body) from None
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def _answer(self, request: Request, received: Received[ChatCompletionRequest]) -> Response:
        body, settings, style = received.body, self._settings, self._style(received)
        wanted = to_generation_request(body, current_date=settings.prompt_date())
        if not body.stream:
            answer = await unless_disconnected(request, whole_answer(self._generator, wanted, style))
            return Response(msgspec.json.encode(answer), headers=received.headers, media_type="application/json")
        start = self._generator.start(wanted, first_output_wait_s=settings.first_output_wait_s)
        generation = await unless_disconnected(request, start)
        return EventStreamResponse(
            stream_answer(generation, style, body),
            on_close=generation.close,
            keep_alive_s=settings.keep_alive_s,
            headers=received.headers,
        )

    def _style(self, received: Received[ChatCompletionRequest]) -> AnswerStyle:
        body = received.body
        return AnswerStyle(
            model=received.model,
            system_fingerprint=self._system_fingerprint,
            speller=self._speller,
            reasoning_field=None if body.include_reasoning is False else self._settings.reasoning_field,
            with_logprobs=bool(body.logprobs),
            with_token_ids=bool(body.return_token_ids),
        )
