"""The web application: which routes there are and what is around them."""

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from rose import __version__
from rose.chat.format import ChatFormat
from rose.chat.tokenizer import Tokenizer
from rose.engine.client import EngineClient
from rose.errors import CheckpointError
from rose.server.admin import Admin
from rose.server.chat_completions.handler import ChatCompletions
from rose.server.completions.handler import Completions
from rose.server.errors import add_error_handlers
from rose.server.fields import IGNORED_FIELDS_HEADER
from rose.server.generation import Generator
from rose.server.intake import Intake
from rose.server.messages.handler import Messages
from rose.server.metrics import Metrics
from rose.server.middleware import REQUEST_ID_HEADER, ApiKeys, BodyLimit, RequestContext
from rose.server.models import Models
from rose.server.openapi import complete_document
from rose.server.responses.handler import Responses
from rose.server.responses.open_store import open_store
from rose.server.settings import ServerSettings


def create_app(
    engine: EngineClient, chat_format: ChatFormat, tokenizer: Tokenizer, settings: ServerSettings
) -> FastAPI:
    """The application in front of a running engine. It does not close the engine.

    Raises `CheckpointError` for a tokenizer with more tokens than the engine's model has.
    """
    if tokenizer.vocab_size > engine.info.vocab_size:
        raise CheckpointError(
            f"{tokenizer.source} has ids up to {tokenizer.vocab_size - 1}, "
            f"but the model's vocabulary ends at {engine.info.vocab_size - 1}: they do not belong together"
        )
    name, folder = settings.served_model_names[0], settings.shared_folder
    metrics = Metrics(engine, name, vllm_names=settings.vllm_metrics, folder=folder)
    generator = Generator(engine, chat_format, tokenizer, metrics)
    app = FastAPI(title="rose", version=__version__, root_path=settings.root_path, redoc_url=None)
    add_error_handlers(app)

    intake = Intake(metrics, settings)
    system_fingerprint = f"rose-{__version__}-{engine.info.dtype}"
    chat_completions = ChatCompletions(
        generator=generator,
        tokenizer=tokenizer,
        intake=intake,
        settings=settings,
        system_fingerprint=system_fingerprint,
    )
    responses = Responses(
        generator=generator,
        tokenizer=tokenizer,
        intake=intake,
        settings=settings,
        store=open_store(settings.response_store, folder),
    )
    completions = Completions(
        generator=generator,
        tokenizer=tokenizer,
        intake=intake,
        settings=settings,
        system_fingerprint=system_fingerprint,
    )
    messages = Messages(generator=generator, intake=intake, settings=settings)
    admin = Admin(engine=engine, generator=generator, tokenizer=tokenizer, metrics=metrics, settings=settings)
    models = Models(settings.served_model_names, engine.info.max_model_len)
    for part in (chat_completions, responses, completions, messages, models, admin):
        app.include_router(part.router())
    complete_document(app, settings.served_model_names)

    # The one added last runs first: an id for every answer, then CORS, the key, and only then a look at the body.
    max_bytes = settings.body_limit(engine.info.max_model_len)
    app.add_middleware(BodyLimit, max_bytes=max_bytes, timeout_s=settings.body_timeout_s)
    if settings.api_keys:
        app.add_middleware(ApiKeys, api_keys=settings.api_keys)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID_HEADER, IGNORED_FIELDS_HEADER],
        )
    app.add_middleware(RequestContext)
    return app
