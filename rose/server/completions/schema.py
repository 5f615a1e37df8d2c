"""The request body of `/v1/completions`: the shape of the fields that are honoured."""

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from rose.server.body_parts import Stop, StreamOptions
from rose.server.guided import FormFields
from rose.server.intake import RequestBody
from rose.server.sampling import NumCompletions, NumTopLogprobs, PositiveInt, SamplingFields


def _prompt_tag(value: Any) -> str | None:
    if isinstance(value, str):
        return "<text>"
    if not isinstance(value, list):
        return None
    first = value[0] if value else ""
    return "<texts>" if isinstance(first, str) else "<lists>" if isinstance(first, list) else "<ids>"


# The tags stand in angle brackets so that an error's location can leave them out.
Prompt = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[str], Tag("<texts>")]
    | Annotated[list[int], Tag("<ids>")]
    | Annotated[list[list[int]], Tag("<lists>")],
    Discriminator(
        _prompt_tag,
        custom_error_type="prompt_type",
        custom_error_message="Input should be a string, a list of token ids, or a list of either",
    ),
]


class CompletionRequest(RequestBody, SamplingFields, FormFields):
    """The whole body."""

    prompt: Prompt
    max_tokens: PositiveInt = None
    n: NumCompletions = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: NumTopLogprobs = None
    stop: Stop | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
