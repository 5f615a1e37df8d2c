"""The request body of `/v1/responses`: the shape of the fields that are honoured.

Input items keep whatever else clients put on them, since they are stored and given back unchanged.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Tag, TypeAdapter

from rose.server.body_parts import Content, ContentPart, ToolChoice, text_or_list
from rose.server.intake import BodyPart, RequestBody


class _Item(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    id: str | None = None


class InputMessage(_Item):
    """A message of any role; its `type` may be left out."""

    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: Content | None = None


class ReasoningInput(_Item):
    """Reasoning that an earlier response had. A summary stands in for a content that is missing."""

    type: Literal["reasoning"]
    content: list[ContentPart] | None = None
    summary: list[ContentPart] | None = None


class FunctionCallInput(_Item):
    """A call that an earlier response had."""

    type: Literal["function_call"]
    status: str | None = None
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str


class CodeOutput(BodyPart):
    """What code printed; an image has no logs."""

    type: str
    logs: str | None = None


class FunctionCallOutput(_Item):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content | None = None


class CodeInterpreterCallInput(_Item):
    """Code that an earlier response ran. outputs: null or left out if the client was not told."""

    type: Literal["code_interpreter_call"]
    status: str | None = None
    code: str | None = None
    outputs: list[CodeOutput] | None = None


class WebSearchCallInput(_Item):
    """A call of the web search that an earlier response made. The last three are there if it was kept here."""

    type: Literal["web_search_call"]
    status: str | None = None
    action: dict[str, Any] | None = None
    results: list[ContentPart] | None = None
    recipient: str | None = None
    arguments: str | None = None


class ItemReference(_Item):
    """An item of an earlier response by its id, which the server may or may not have kept."""

    type: Literal["item_reference"] | None = None
    id: str


class OtherItem(_Item):
    """An item of a kind that this server never makes. It is left out, and reported."""

    type: str


# The tags stand in angle brackets so that an error's location can leave them out.
_ITEM_TAGS = {
    "message": "<message>",
    "reasoning": "<reasoning>",
    "function_call": "<call>",
    "function_call_output": "<output>",
    "code_interpreter_call": "<code>",
    "web_search_call": "<search>",
    "item_reference": "<reference>",
}


def _item_tag(value: Any) -> str | None:
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_unset=True)
    if not isinstance(value, dict):
        return None
    kind = value.get("type")
    if isinstance(kind, str):
        return _ITEM_TAGS.get(kind, "<other>")
    return "<reference>" if set(value) <= {"id", "type"} and "id" in value else "<message>"


InputItem = Annotated[
    Annotated[InputMessage, Tag("<message>")]
    | Annotated[ReasoningInput, Tag("<reasoning>")]
    | Annotated[FunctionCallInput, Tag("<call>")]
    | Annotated[FunctionCallOutput, Tag("<output>")]
    | Annotated[CodeInterpreterCallInput, Tag("<code>")]
    | Annotated[WebSearchCallInput, Tag("<search>")]
    | Annotated[ItemReference, Tag("<reference>")]
    | Annotated[OtherItem, Tag("<other>")],
    Discriminator(_item_tag, custom_error_type="item_type", custom_error_message="Input should be an input item"),
]

STORED_ITEMS: TypeAdapter[list[InputItem]] = TypeAdapter(list[InputItem])
"""Reads back items that were stored."""

Input = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[InputItem], Tag("<list>")],
    Discriminator(
        text_or_list,
        custom_error_type="input_type",
        custom_error_message="Input should be a string or a list of items",
    ),
]


class Tool(BodyPart):
    """An entry of `tools`: a function, a namespace with its `tools`, or a tool that the server may have.

    Others are left out, and reported.
    """

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    tools: list["Tool"] | None = None


class Reasoning(BodyPart):
    """How the model is to reason."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class TextFormat(BodyPart):
    """The form that the text must have; `rose.server.constraints` reads it."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: str


class TextOptions(BodyPart):
    """How the text is to be."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ResponsesRequest(RequestBody):
    """The whole body."""

    input: Input
    instructions: str | None = None
    previous_response_id: str | None = None

    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None

    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    truncation: Literal["auto", "disabled"] | None = None

    include: list[str] | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
