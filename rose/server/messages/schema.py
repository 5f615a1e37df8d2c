"""The request body of `/v1/messages`: the shape of the fields that are honoured."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Tag

from rose.server.body_parts import text_or_list
from rose.server.intake import BodyPart, RequestBody
from rose.server.sampling import Temperature, TopK, TopP, told


class ResultPart(BodyPart):
    """A part of a tool's result, or of the system prompt. Only text is served."""

    type: str
    text: str | None = None


# The tags stand in angle brackets so that an error's location can leave them out.
Texts = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[ResultPart], Tag("<list>")],
    Discriminator(
        text_or_list,
        custom_error_type="text_type",
        custom_error_message="Input should be a string or a list of text blocks",
    ),
]


class Block(BodyPart):
    """A block of a message, of any type; which fields it needs depends on that."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: Texts | None = None


Blocks = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[Block], Tag("<list>")],
    Discriminator(
        text_or_list,
        custom_error_type="content_type",
        custom_error_message="Input should be a string or a list of content blocks",
    ),
]


class InputMessage(BodyPart):
    """A message. `system` is a later instruction, in its place."""

    role: Literal["user", "assistant", "system"]
    content: Blocks


class Tool(BodyPart):
    """An entry of `tools`. Anthropic's own tools, which have another `type`, are left out, and reported."""

    type: str | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(BodyPart):
    """Whether tools may or must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None


class Thinking(BodyPart):
    """Whether the answer shows the thinking; its budget is taken as a measure of effort."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None


class OutputFormat(BodyPart):
    """The form that the text must have; `rose.server.constraints` reads it."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: str


class OutputConfig(BodyPart):
    """How the answer is to be."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountTokensRequest(RequestBody):
    """The body of `/v1/messages/count_tokens`: what shapes the prompt."""

    messages: Annotated[list[InputMessage], told(minItems=1)]
    system: Texts | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None


class MessagesRequest(CountTokensRequest):
    """The body of `/v1/messages`."""

    max_tokens: Annotated[int, told(minimum=1)]
    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
