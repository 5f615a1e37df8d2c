"""The routes around the API: health, version, metrics, and the tokenizer."""

import asyncio
from typing import Annotated, Any

import msgspec
import pydantic
from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import Field

from rose import __version__
from rose.chat.tokenizer import Tokenizer
from rose.engine.client import EngineClient
from rose.errors import RequestError
from rose.server.chat_completions.convert import to_conversation
from rose.server.chat_completions.kinds import CHAT_FIELDS
from rose.server.chat_completions.schema import ChatCompletionRequest
from rose.server.errors import ApiError, model_not_found, parse_body
from rose.server.generation import Generator
from rose.server.metrics import CONTENT_TYPE, Metrics
from rose.server.openapi import describe_body
from rose.server.settings import ServerSettings

TokenId = Annotated[int, Field(ge=0)]


class TokenizeRequest(pydantic.BaseModel):
    """`/tokenize`: a `prompt` of plain text, or the `messages` of a chat with whatever else shapes its prompt."""

    model_config = pydantic.ConfigDict(strict=True, extra="allow", frozen=True)

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(pydantic.BaseModel):
    """`/detokenize`: token ids."""

    model_config = pydantic.ConfigDict(strict=True, extra="ignore", frozen=True)

    model: str | None = None
    tokens: list[TokenId]


class Tokenized(msgspec.Struct, frozen=True):
    """The answer of `/tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(msgspec.Struct, frozen=True):
    """The answer of `/detokenize`."""

    prompt: str


class Admin:
    """Answers probes, scrapers and the curious."""

    def __init__(
        self,
        *,
        engine: EngineClient,
        generator: Generator,
        tokenizer: Tokenizer,
        metrics: Metrics,
        settings: ServerSettings,
    ) -> None:
        self._engine = engine
        self._generator = generator
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._settings = settings

    def router(self) -> APIRouter:
        """The routes, to be put into an app."""
        router = APIRouter()
        for path, endpoint, kind in (
            ("/health", self.health, Response),  # whose answer has no body
            ("/ping", self.health, Response),
            ("/metrics", self.show_metrics, PlainTextResponse),
        ):
            router.add_api_route(path, endpoint, response_model=None, response_class=kind)
            router.add_api_route(path, endpoint, methods=["HEAD"], response_model=None, include_in_schema=False)
        router.add_api_route("/ping", self.health, methods=["POST"], response_model=None, include_in_schema=False)
        router.add_api_route("/version", self.version)
        for path, post, extra in (
            ("/tokenize", self.tokenize, describe_body(TokenizeRequest, Tokenized)),
            ("/detokenize", self.detokenize, describe_body(DetokenizeRequest, Detokenized)),
        ):
            router.add_api_route(path, post, methods=["POST"], response_model=None, openapi_extra=extra)
        return router

    async def health(self) -> Response:
        """200 while the engine lives and answers, else 503."""
        if not self._engine.is_alive:
            return ApiError(503, "the engine is not running", code="engine_dead").response()
        silence_s, limit_s = self._engine.silence_s(), self._settings.health_timeout_s
        if 0 < limit_s < silence_s:
            message = f"the engine has not answered for {silence_s:.0f} seconds"
            return ApiError(503, message, code="engine_unresponsive").response()
        return Response(status_code=200)

    async def version(self) -> dict[str, str]:
        """The version of `rose`."""
        return {"version": __version__}

    async def show_metrics(self) -> Response:
        """The series, in Prometheus's text format."""
        return Response(self._metrics.exposition(), media_type=CONTENT_TYPE)

    async def tokenize(self, request: Request) -> Response:
        """The token ids of a text, or of the prompt that a chat makes."""
        raw = await request.body()
        body = parse_body(TokenizeRequest, raw)
        self._check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise RequestError("give either prompt or messages", param="prompt", code="invalid_value")
        if body.prompt is None:
            chat = parse_body(ChatCompletionRequest, raw)
            CHAT_FIELDS.review(chat.model_extra or {}, strict=False)
            conversation = to_conversation(chat, current_date=self._settings.prompt_date())
            ids = await self._generator.render(conversation)
        else:
            ids = await asyncio.to_thread(self._tokenizer.encode, body.prompt)
        strings = await asyncio.to_thread(self._spell, ids) if body.return_token_strs else None
        return _json(Tokenized(len(ids), self._engine.info.max_model_len, ids, strings))

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids, control tokens spelled out."""
        body = parse_body(DetokenizeRequest, await request.body())
        self._check_model(body.model)
        limit = max(self._engine.info.vocab_size, self._tokenizer.vocab_size)
        for i, token_id in enumerate(body.tokens):
            if token_id >= limit:
                message = f"{token_id} is no token id; this model's are 0 to {limit - 1}"
                raise RequestError(message, param=f"tokens[{i}]", code="invalid_token_id")
        return _json(Detokenized(await asyncio.to_thread(self._tokenizer.decode, body.tokens, keep_special=True)))

    def _spell(self, ids: list[int]) -> list[str]:
        return [self._tokenizer.decode([token_id], keep_special=True) for token_id in ids]

    def _check_model(self, name: str | None) -> None:
        if name is not None and name not in self._settings.served_model_names:
            raise model_not_found(name, self._settings.served_model_names)


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
