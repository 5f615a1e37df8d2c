"""How much the model is to think, as clients say it and as gpt-oss knows it."""

from collections.abc import Mapping

from rose.chat.conversation import ReasoningEffort
from rose.errors import RequestError

OPENAI_EFFORTS: Mapping[str, ReasoningEffort] = {
    "none": "low",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
}
EFFORTS: Mapping[str, ReasoningEffort] = {**OPENAI_EFFORTS, "max": "high"}


def reasoning_effort(
    given: str | None, *, param: str, words: Mapping[str, ReasoningEffort] = EFFORTS
) -> ReasoningEffort:
    """The nearest effort that the model was trained for. words: those that the API has for it.

    Raises `RequestError` for another word.
    """
    if given is None:
        return "medium"
    if given not in words:
        raise RequestError(
            f"{param} must be one of {', '.join(words)}, not {given!r}", param=param, code="invalid_value"
        )
    return words[given]
