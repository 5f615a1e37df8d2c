"""What a generating route does first: read the body, sort its fields, and see that the model is served here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict

from rose.server.errors import model_not_found, parse_body
from rose.server.fields import FieldKinds, ignored_fields_header
from rose.server.metrics import Metrics
from rose.server.middleware import sound_request_id
from rose.server.settings import ServerSettings


class RequestBody(BaseModel):
    """Base of request bodies: types are strict, null means absent, and unknown fields are kept for review."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, json_schema_extra={"additionalProperties": True})

    model: str | None = None
    request_id: str | None = None


class BodyPart(BaseModel):
    """Base of what stands inside a body. Fields that are not known there are of no consequence."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


BodyT = TypeVar("BodyT", bound=RequestBody)


@dataclass(frozen=True, slots=True)
class Received(Generic[BodyT]):
    """A sound body. model: the name to put in the answer. headers: what the answer must say of ignored fields."""

    body: BodyT
    model: str
    headers: dict[str, str]


class Intake:
    """Reads requests for any API."""

    def __init__(self, metrics: Metrics, settings: ServerSettings) -> None:
        self._metrics = metrics
        self._settings = settings

    async def read(
        self,
        request: Request,
        schema: type[BodyT],
        kinds: FieldKinds,
        ignored_inside: Callable[[BodyT], list[str]] = lambda _: [],
    ) -> Received[BodyT]:
        """The body of a request.

        ignored_inside: names what the API leaves unheeded deeper in the body, to be reported like unknown fields.
        Raises `RequestError` for a body that is wrong, and `ApiError` for a model that is not served.
        """
        settings = self._settings
        body = parse_body(schema, await request.body())
        ignored = kinds.review(body.model_extra or {}, strict=settings.strict_fields) + ignored_inside(body)
        self._metrics.count_ignored_fields(ignored)
        if body.model is not None and body.model not in settings.served_model_names:
            raise model_not_found(body.model, settings.served_model_names)
        if not request.state.has_own_request_id and (own_id := sound_request_id(body.request_id)):
            request.state.request_id = own_id
        return Received(body, body.model or settings.served_model_names[0], ignored_fields_header(ignored))
