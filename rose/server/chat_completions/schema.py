"""The request body of `/v1/chat/completions`: the shape of the fields that are honoured.

Types are strict (`"stream": "true"` is an error) and null means absent. What values mean is decided in `convert`, and
what becomes of all other fields in `kinds`.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Tag

from rose.server.intake import BodyPart, RequestBody
from rose.server.sampling import SamplingFields


def _text_or_list(value: Any) -> str | None:
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
        _text_or_list,
        custom_error_type="content_type",
        custom_error_message="Input should be a string or a list of content parts",
    ),
]


class FunctionCall(BodyPart):
    """The function and arguments of a call that the assistant made."""

    name: str
    arguments: str | None = None


class AssistantToolCall(BodyPart):
    """A call in an assistant message's `tool_calls`."""

    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCall


class ChatMessage(BodyPart):
    """A message of any role. An assistant message may bring its reasoning back under either name."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[AssistantToolCall] | None = None
    tool_call_id: str | None = None


class FunctionDefinition(BodyPart):
    """A function that the model may call. strict: its calls' arguments must fit `parameters`."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BodyPart):
    """An entry of `tools`."""

    type: str
    function: FunctionDefinition | None = None


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
        _text_or_list,
        custom_error_type="stop_type",
        custom_error_message="Input should be a string or a list of strings",
    ),
]


class ResponseFormat(BodyPart):
    """The form that the content must have; `rose.server.constraints` reads it."""

    type: str
    json_schema: dict[str, Any] | None = None


class StreamOptions(BodyPart):
    """What a stream carries besides the answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ChatCompletionRequest(RequestBody, SamplingFields):
    """The whole body."""

    messages: list[ChatMessage]

    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: Stop | None = None

    logprobs: bool | None = None
    top_logprobs: int | None = None
    return_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
