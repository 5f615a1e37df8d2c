"""Pieces that the bodies of several APIs have."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Tag

from rose.server.intake import BodyPart


def text_or_list(value: Any) -> str | None:
    """The tag of a value that may be a string or a list."""
    return "<text>" if isinstance(value, str) else "<list>" if isinstance(value, list) else None


def _text_or_object(value: Any) -> str | None:
    return "<text>" if isinstance(value, str) else "<object>" if isinstance(value, (dict, BaseModel)) else None


class ContentPart(BodyPart):
    """A part of a message's content. Only text is served; the others are refused by their type."""

    type: str
    text: str | None = None
    refusal: str | None = None


# The tags stand in angle brackets so that an error's location can leave them out.
Content = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[ContentPart], Tag("<list>")],
    Discriminator(
        text_or_list,
        custom_error_type="content_type",
        custom_error_message="Input should be a string or a list of content parts",
    ),
]


class NamedToolChoice(BodyPart):
    """A `tool_choice` that is an object; `rose.server.constraints` reads it."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: str


ToolChoice = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[NamedToolChoice, Tag("<object>")],
    Discriminator(
        _text_or_object,
        custom_error_type="tool_choice_type",
        custom_error_message="Input should be a string or an object with a type",
    ),
]

Stop = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[str], Tag("<list>")],
    Discriminator(
        text_or_list,
        custom_error_type="stop_type",
        custom_error_message="Input should be a string or a list of strings",
    ),
]


class StreamOptions(BodyPart):
    """What a stream carries besides the answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
