"""From the request body to what the generator takes and the response repeats; refusals name their field."""

import time
from typing import Any

from rose.chat.conversation import Conversation, Message
from rose.engine.sampling_params import SamplingParams
from rose.errors import RequestError
from rose.server.builtin_tools.toolbox import Toolbox
from rose.server.constraints import answer_format
from rose.server.effort import reasoning_effort
from rose.server.ids import new_id
from rose.server.responses.namespaces import left_out_of
from rose.server.responses.objects import LOGPROBS, ReasoningOptions, Response
from rose.server.responses.offered import OfferedTools, is_offered
from rose.server.responses.schema import OtherItem, ResponsesRequest
from rose.server.sampling import own_sampling_params

_SUMMARIES = ("auto", "concise", "detailed", "none")
_VERBOSITIES = ("low", "medium", "high")


def to_conversation(
    body: ResponsesRequest, messages: tuple[Message, ...], tools: OfferedTools, *, current_date: str | None
) -> Conversation:
    """The chat that the model is to go on with. messages: those of the earlier turns and of the input, in order."""
    opening = (Message("developer", body.instructions),) if body.instructions else ()
    reasoning = body.reasoning
    return Conversation(
        messages=opening + messages,
        tools=tools.functions,
        builtin_tools=tools.builtins,
        reasoning_effort=reasoning_effort(reasoning.effort if reasoning else None, param="reasoning.effort"),
        current_date=current_date,
        answer_format=None if (wanted := _text_format(body)) is None else answer_format(wanted, param="text.format"),
    )


def to_sampling_params(body: ResponsesRequest) -> SamplingParams:
    """How to sample. Raises `RequestError` for a value that cannot be."""
    wants_logprobs = LOGPROBS in (body.include or ()) or bool(body.top_logprobs)
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
    if body.max_tool_calls is not None and body.max_tool_calls < 0:
        raise RequestError("max_tool_calls must not be negative", param="max_tool_calls", code="invalid_value")
    if body.text is not None and body.text.verbosity not in (None, *_VERBOSITIES):
        raise _invalid("text.verbosity", body.text.verbosity, _VERBOSITIES)
    if body.reasoning is not None and body.reasoning.summary not in (None, *_SUMMARIES):
        raise _invalid("reasoning.summary", body.reasoning.summary, _SUMMARIES)


def wants_summary(body: ResponsesRequest) -> bool:
    """Whether a summary of the reasoning is asked for."""
    reasoning = body.reasoning
    wish = None if reasoning is None else reasoning.summary or reasoning.generate_summary
    return wish not in (None, "none")


def ignored_inside(body: ResponsesRequest, toolbox: Toolbox) -> list[str]:
    """What is left out of tools and input, by its type, each kind once."""
    tools = [f"tools.{tool.type}" for tool in body.tools or () if not is_offered(tool, toolbox)]
    tools += [f"tools.namespace.{kind}" for tool in body.tools or () for kind in left_out_of(tool)]
    items = [] if isinstance(body.input, str) else body.input
    others = [f"input.{item.type}" for item in items if isinstance(item, OtherItem)]
    return list(dict.fromkeys(tools + others))


def to_response(body: ResponsesRequest, tools: OfferedTools, *, model: str, default: SamplingParams) -> Response:
    """The response as it is before its first token."""
    reasoning, text = body.reasoning, body.text
    return Response(
        id=new_id("resp"),
        created_at=int(time.time()),
        model=model,
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning=ReasoningOptions(
            (reasoning.effort if reasoning else None) or "medium",
            reasoning.summary if reasoning and reasoning.summary != "none" else None,
        ),
        safety_identifier=body.safety_identifier,
        store=body.store is not False,
        temperature=default.temperature,
        text={
            "format": _text_format(body) or {"type": "text"},
            "verbosity": (text.verbosity if text else None) or "medium",
        },
        tool_choice=_echo_choice(body),
        tools=tools.as_asked(),
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


def _text_format(body: ResponsesRequest) -> dict[str, Any] | None:
    return None if body.text is None or body.text.format is None else body.text.format.model_dump()


def _echo_choice(body: ResponsesRequest) -> str | dict[str, Any]:
    choice = body.tool_choice
    return choice or "auto" if choice is None or isinstance(choice, str) else choice.model_dump()


def _invalid(param: str, given: object, allowed: tuple[str, ...]) -> RequestError:
    return RequestError(
        f"{param} must be one of {', '.join(allowed)}, not {given!r}", param=param, code="invalid_value"
    )
