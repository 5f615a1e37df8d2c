"""The sampling fields that several APIs share, beyond those that each names its own way."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from rose.engine.sampling_params import MAX_N, MAX_TOP_LOGPROBS, SamplingParams
from rose.errors import RequestError
from rose.server.generation import MAX_STOP_STRINGS


def told(**schema: Any) -> Any:
    """For a field whose limits `SamplingParams.validate` checks: tells them in `/openapi.json`, and checks nothing."""
    return Field(json_schema_extra=schema)


PositiveInt = Annotated[int | None, told(minimum=1)]
NumCompletions = Annotated[int | None, told(minimum=1, maximum=MAX_N)]
NumTopLogprobs = Annotated[int | None, told(minimum=0, maximum=MAX_TOP_LOGPROBS)]
Temperature = Annotated[float | None, told(minimum=0, maximum=2)]
TopP = Annotated[float | None, told(exclusiveMinimum=0, maximum=1)]
TopK = Annotated[int | None, told(minimum=-1)]


class SamplingFields(BaseModel):
    """Fields that mean the same in every API that has them."""

    model_config = ConfigDict(strict=True, frozen=True)

    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    min_p: Annotated[float | None, told(minimum=0, maximum=1)] = None
    presence_penalty: Annotated[float | None, told(minimum=-2, maximum=2)] = None
    frequency_penalty: Annotated[float | None, told(minimum=-2, maximum=2)] = None
    repetition_penalty: Annotated[float | None, told(minimum=0.01, maximum=100)] = None
    logit_bias: dict[int, Annotated[float, told(minimum=-100, maximum=100)]] | None = None
    seed: int | None = None
    min_tokens: Annotated[int | None, told(minimum=0)] = None
    stop_token_ids: list[Annotated[int, told(minimum=0)]] | None = None
    ignore_eos: bool | None = None


def sampling_params(fields: SamplingFields, **own: Any) -> SamplingParams:
    """The parameters that a body asks for; `own` are those the API reads itself, as `own_sampling_params` takes them.

    Raises `RequestError` for a value that cannot be.
    """
    given: dict[str, Any] = {name: getattr(fields, name) for name in SamplingFields.model_fields} | own
    if given["stop_token_ids"] is not None:
        given["stop_token_ids"] = tuple(given["stop_token_ids"])
    given["logit_bias"] = given["logit_bias"] or None
    return own_sampling_params(**given)


def own_sampling_params(**given: Any) -> SamplingParams:
    """The parameters of an API that reads them all itself. None means the default.

    Raises `RequestError` for a value that cannot be.
    """
    if given.get("top_k") == -1:  # how some clients spell "off"
        given["top_k"] = None
    params = SamplingParams(**{name: value for name, value in given.items() if value is not None})
    params.validate()
    return params


def stop_strings(stop: str | Sequence[str] | None, *, param: str = "stop") -> tuple[str, ...]:
    """A stop field's strings. Raises `RequestError` for too many, or an empty one."""
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(strings) > MAX_STOP_STRINGS:
        raise RequestError(f"{param} may have {MAX_STOP_STRINGS} strings, not {len(strings)}", param=param)
    if "" in strings:
        raise RequestError("a stop string must not be empty", param=param, code="invalid_value")
    return strings
