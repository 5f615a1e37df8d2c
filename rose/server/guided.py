"""The fields by which clients constrain an answer's form: `response_format`, and the extensions of other servers.

These are `structured_outputs`, and the older `guided_*`.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from rose.chat.answer_format import AnswerFormat, ChoiceFormat, GrammarFormat, JsonFormat, RegexFormat
from rose.errors import RequestError
from rose.server.constraints import answer_format
from rose.server.errors import unsupported
from rose.server.intake import BodyPart

_KINDS = ("json", "regex", "choice", "grammar", "json_object")
GUIDED_FIELDS = tuple(f"guided_{kind}" for kind in _KINDS[:4])


class ResponseFormat(BodyPart):
    """The form that the text must have; `rose.server.constraints` reads it."""

    type: str
    json_schema: dict[str, Any] | None = None


class FormFields(BaseModel):
    """The fields, for the bodies of APIs that have them."""

    model_config = ConfigDict(strict=True, frozen=True)

    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


def wanted_form(fields: FormFields) -> AnswerFormat | None:
    """The one form that a body asks for, if any. Raises `RequestError` for more than one, and for what is none."""
    wanted = fields.response_format
    plain = None if wanted is None else answer_format(wanted.model_dump(), param="response_format")
    guided = guided_format(fields.structured_outputs, {name: getattr(fields, name) for name in GUIDED_FIELDS})
    if plain is not None and guided is not None:
        raise RequestError(
            f"{plain.param} and {guided.param} exclude each other", param=guided.param, code="invalid_value"
        )
    return guided or plain


def guided_format(structured_outputs: Mapping[str, Any] | None, guided: Mapping[str, Any]) -> AnswerFormat | None:
    """The one form that these fields ask for, if any. guided: the `guided_*` fields by their whole names.

    Raises `RequestError` for more than one, and for what cannot be read.
    """
    wanted = list(_formats(structured_outputs or {}, guided))
    if len(wanted) > 1:
        params = " and ".join(each.param for each in wanted)
        raise RequestError(f"{params} exclude each other", param=wanted[1].param, code="invalid_value")
    return wanted[0] if wanted else None


def _formats(structured_outputs: Mapping[str, Any], guided: Mapping[str, Any]) -> Iterator[AnswerFormat]:
    for name in GUIDED_FIELDS:
        if guided.get(name) is not None:
            yield _format(name.removeprefix("guided_"), guided[name], name)
    for kind, value in structured_outputs.items():
        param = f"structured_outputs.{kind}"
        if value is None or value is False:
            continue
        if kind not in _KINDS:
            raise unsupported(param, f"{param} is not supported; there is {', '.join(_KINDS)}")
        yield _format(kind, value, param)


def _format(kind: str, value: Any, param: str) -> AnswerFormat:
    match kind, value:
        case "json", Mapping():
            return JsonFormat(value, param=param)
        case "json", str():
            return JsonFormat(_parse(value, param), param=param)
        case "json_object", True:
            return JsonFormat(param=param)
        case "regex", str():
            return RegexFormat(value, param=param)
        case "grammar", str():
            return GrammarFormat(value, param=param)
        case "choice", [*choices] if choices and all(isinstance(choice, str) for choice in choices):
            return ChoiceFormat(tuple(choices), param=param)
    needed = {"json": "a JSON schema", "json_object": "true", "choice": "a list of strings"}.get(kind, "a string")
    raise RequestError(f"{param} must be {needed}", param=param, code="invalid_type")


def _parse(text: str, param: str) -> Mapping[str, Any]:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, Mapping):
        raise RequestError(f"{param} is no JSON schema", param=param, code="invalid_value")
    return schema
