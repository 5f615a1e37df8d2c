"""From the request body to what the generator takes and the response repeats; refusals name their field."""

import time
from typing import Any

from rose.chat.answer_format import ToolChoice
from rose.chat.conversation import Conversation, FunctionTool, Message
from rose.engine.sampling_params import SamplingParams
from rose.errors import RequestError
from rose.server.constraints import answer_format, tool_choice
from rose.server.effort import reasoning_effort
from rose.server.errors import unsupported
from rose.server.ids import new_id
from rose.server.responses.objects import ReasoningOptions, Response
from rose.server.responses.schema import OtherItem, ResponsesRequest, Tool
from rose.server.sampling import own_sampling_params

_LOGPROBS = "message.output_text.logprobs"
_SUMMARIES = ("auto", "concise", "detailed", "none")
_VERBOSITIES = ("low", "medium", "high")


def to_conversation(body: ResponsesRequest, messages: tuple[Message, ...], *, current_date: str | None) -> Conversation:
    """The chat that the model is to go on with. messages: those of the earlier turns and of the input, in order."""
    opening = (Message("developer", body.instructions),) if body.instructions else ()
    reasoning = body.reasoning
    return Conversation(
        messages=opening + messages,
        tools=_offered_tools(body),
        reasoning_effort=reasoning_effort(reasoning.effort if reasoning else None, param="reasoning.effort"),
        current_date=current_date,
        answer_format=None if (wanted := _text_format(body)) is None else answer_format(wanted, param="text.format"),
    )


def to_tool_choice(body: ResponsesRequest) -> ToolChoice | None:
    """Which tools may or must be called; None if none may."""
    choice = body.tool_choice
    return tool_choice(choice if choice is None or isinstance(choice, str) else choice.model_dump())


def to_sampling_params(body: ResponsesRequest) -> SamplingParams:
    """How to sample. Raises `RequestError` for a value that cannot be."""
    wants_logprobs = _LOGPROBS in (body.include or ()) or bool(body.top_logprobs)
    return own_sampling_params(
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        logprobs=(body.top_logprobs or 0) if wants_logprobs else None,
    )


def check(body: ResponsesRequest) -> None:
    """Refuse what is understood and cannot be honoured, before anything is rendered."""
    if body.background and body.store is False:
        raise RequestError("a background response must be stored", param="background", code="invalid_value")
    if body.background and body.stream:
        raise unsupported("background", "a background response cannot be streamed; ask for its state by its id")
    if body.text is not None and body.text.verbosity not in (None, *_VERBOSITIES):
        raise _invalid("text.verbosity", body.text.verbosity, _VERBOSITIES)
    if body.reasoning is not None and body.reasoning.summary not in (None, *_SUMMARIES):
        raise _invalid("reasoning.summary", body.reasoning.summary, _SUMMARIES)


def ignored_inside(body: ResponsesRequest) -> list[str]:
    """What is left out of tools and input, by its type, each kind once."""
    tools = [f"tools.{tool.type}" for tool in body.tools or () if tool.type != "function"]
    items = [] if isinstance(body.input, str) else body.input
    others = [f"input.{item.type}" for item in items if isinstance(item, OtherItem)]
    return list(dict.fromkeys(tools + others))


def to_response(body: ResponsesRequest, *, model: str, default: SamplingParams) -> Response:
    """The response as it is before its first token."""
    reasoning, text = body.reasoning, body.text
    return Response(
        id=new_id("resp"),
        created_at=int(time.time()),
        model=model,
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning=ReasoningOptions(
            (reasoning.effort if reasoning else None) or "medium", reasoning.summary if reasoning else None
        ),
        safety_identifier=body.safety_identifier,
        store=body.store is not False,
        temperature=default.temperature,
        text={
            "format": _text_format(body) or {"type": "text"},
            "verbosity": (text.verbosity if text else None) or "medium",
        },
        tool_choice=_echo_choice(body),
        tools=[_echo(tool) for tool in body.tools or () if tool.type == "function"],
        top_logprobs=body.top_logprobs or 0,
        top_p=default.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
    )


def as_client_named_it(error: RequestError) -> RequestError:
    """The error with the name that this API has for the parameter at fault."""
    names = {"messages": "input", "max_tokens": "max_output_tokens", "logprobs": "top_logprobs"}
    if error.param not in names:
        return error
    return RequestError(error.message, param=names[error.param], code=error.code)


def _offered_tools(body: ResponsesRequest) -> tuple[FunctionTool, ...]:
    tools = tuple(_function(tool, i) for i, tool in enumerate(body.tools or ()) if tool.type == "function")
    return () if to_tool_choice(body) is None else tools  # what the model is not told of, it does not call


def _text_format(body: ResponsesRequest) -> dict[str, Any] | None:
    return None if body.text is None or body.text.format is None else body.text.format.model_dump()


def _echo_choice(body: ResponsesRequest) -> str | dict[str, Any]:
    choice = body.tool_choice
    return choice or "auto" if choice is None or isinstance(choice, str) else choice.model_dump()


def _function(tool: Tool, index: int) -> FunctionTool:
    if tool.name is None:
        param = f"tools[{index}].name"
        raise RequestError(f"{param} is missing", param=param, code="missing_required_parameter")
    return FunctionTool(tool.name, tool.description, tool.parameters, strict=bool(tool.strict))


def _echo(tool: Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict is not False,
    }


def _invalid(param: str, given: object, allowed: tuple[str, ...]) -> RequestError:
    return RequestError(
        f"{param} must be one of {', '.join(allowed)}, not {given!r}", param=param, code="invalid_value"
    )
