"""How much the model is to think, as clients say it and as gpt-oss knows it."""

from collections.abc import Mapping

from rose.chat.conversation import ReasoningEffort
from rose.errors import RequestError

EFFORTS: Mapping[str, ReasoningEffort] = {
    "none": "low",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}


def reasoning_effort(given: str | None, *, param: str) -> ReasoningEffort:
    """The nearest effort that the model was trained for. Raises `RequestError` for a word that no API has for it."""
    if given is None:
        return "medium"
    if given not in EFFORTS:
        raise RequestError(
            f"{param} must be one of {', '.join(EFFORTS)}, not {given!r}", param=param, code="invalid_value"
        )
    return EFFORTS[given]
