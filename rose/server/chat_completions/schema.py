"""The request body of `/v1/chat/completions`: the shape of the fields that are honoured.

Types are strict (`"stream": "true"` is an error) and null means absent. What values mean is decided in `convert`, and
what becomes of all other fields in `kinds`.
"""

from typing import Annotated, Any, Literal

from rose.server.body_parts import Content, Stop, StreamOptions, ToolChoice
from rose.server.effort import EFFORTS
from rose.server.guided import FormFields
from rose.server.intake import BodyPart, RequestBody
from rose.server.sampling import NumCompletions, NumTopLogprobs, PositiveInt, SamplingFields, told


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

    type: Annotated[str, told(enum=["function"])]
    function: FunctionDefinition | None = None


class ChatCompletionRequest(RequestBody, SamplingFields, FormFields):
    """The whole body."""

    messages: Annotated[list[ChatMessage], told(minItems=1)]

    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    reasoning_effort: Annotated[str | None, told(enum=[*EFFORTS, None])] = None
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    n: NumCompletions = None
    max_tokens: PositiveInt = None
    max_completion_tokens: PositiveInt = None
    stop: Stop | None = None

    logprobs: bool | None = None
    top_logprobs: NumTopLogprobs = None
    return_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
