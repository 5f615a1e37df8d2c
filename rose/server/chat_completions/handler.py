"""The route of `/v1/chat/completions`: read, check, start the generation, answer streamed or whole."""

import msgspec
from fastapi import APIRouter, Request, Response

from rose.chat.tokenizer import Tokenizer
from rose.errors import RequestError
from rose.server.chat_completions.answer import AnswerStyle
from rose.server.chat_completions.convert import as_client_named_it, to_generation_request, unknown_template_kwargs
from rose.server.chat_completions.kinds import CHAT_FIELDS
from rose.server.chat_completions.schema import ChatCompletionRequest
from rose.server.chat_completions.stream import stream_answer
from rose.server.chat_completions.whole import whole_answer
from rose.server.disconnect import ClientGone, unless_disconnected
from rose.server.errors import CLIENT_CLOSED_REQUEST, model_not_found, parse_body
from rose.server.fields import ignored_fields_header
from rose.server.generation import Generator
from rose.server.metrics import Metrics
from rose.server.middleware import sound_request_id
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
        metrics: Metrics,
        settings: ServerSettings,
        system_fingerprint: str,
    ) -> None:
        self._generator = generator
        self._tokenizer = tokenizer
        self._metrics = metrics
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
            openapi_extra=describe_body(ChatCompletionRequest),
        )
        return router

    async def create(self, request: Request) -> Response:
        """Answer a chat."""
        settings = self._settings
        body = parse_body(ChatCompletionRequest, await request.body())
        ignored = CHAT_FIELDS.review(body.model_extra or {}, strict=settings.strict_fields)
        ignored += unknown_template_kwargs(body)
        self._metrics.count_ignored_fields(ignored)
        if body.model is not None and body.model not in settings.served_model_names:
            raise model_not_found(body.model, settings.served_model_names)
        if not request.state.has_own_request_id and (own_id := sound_request_id(body.request_id)):
            request.state.request_id = own_id

        try:
            return await self._answer(request, body, ignored_fields_header(ignored))
        except RequestError as error:
            raise as_client_named_it(error, body) from None
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def _answer(self, request: Request, body: ChatCompletionRequest, headers: dict[str, str]) -> Response:
        settings, style = self._settings, self._style(body)
        wanted = to_generation_request(body, current_date=settings.current_date)
        if not body.stream:
            answer = await unless_disconnected(request, whole_answer(self._generator, wanted, style))
            return Response(msgspec.json.encode(answer), headers=headers, media_type="application/json")
        start = self._generator.start(wanted, first_output_wait_s=settings.first_output_wait_s)
        generation = await unless_disconnected(request, start)
        return EventStreamResponse(
            stream_answer(generation, style, body),
            on_close=generation.close,
            keep_alive_s=settings.keep_alive_s,
            headers=headers,
        )

    def _style(self, body: ChatCompletionRequest) -> AnswerStyle:
        return AnswerStyle(
            model=body.model or self._settings.served_model_names[0],
            system_fingerprint=self._system_fingerprint,
            tokenizer=self._tokenizer,
            reasoning_field=None if body.include_reasoning is False else self._settings.reasoning_field,
            with_logprobs=bool(body.logprobs),
            with_token_ids=bool(body.return_token_ids),
        )
