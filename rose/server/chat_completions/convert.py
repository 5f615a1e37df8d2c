"""From the request body to what the generator takes: meanings, defaults, and refusals that name their field."""

from collections.abc import Sequence
from typing import Any

from rose.chat.answer_format import ToolChoice
from rose.chat.conversation import Conversation, FunctionTool, Message, ReasoningEffort, ToolCall
from rose.engine.sampling_params import SamplingParams
from rose.errors import RequestError
from rose.server.body_parts import ContentPart
from rose.server.chat_completions.schema import ChatCompletionRequest, ChatMessage, Tool
from rose.server.constraints import tool_choice
from rose.server.effort import reasoning_effort
from rose.server.errors import unsupported
from rose.server.generation import GenerationRequest
from rose.server.guided import wanted_form
from rose.server.sampling import sampling_params, stop_strings

_TEXT_PARTS = ("text", "input_text", "output_text")
_TEMPLATE_KWARGS = ("reasoning_effort", "model_identity")


def to_generation_request(body: ChatCompletionRequest, *, current_date: str | None) -> GenerationRequest:
    """The request that `body` asks for. Raises `RequestError` for what cannot be honoured."""
    return GenerationRequest(
        conversation=to_conversation(body, current_date=current_date),
        sampling_params=_sampling_params(body),
        stop=stop_strings(body.stop),
        tool_choice=_tool_choice(body) or ToolChoice(),
    )


def to_conversation(body: ChatCompletionRequest, *, current_date: str | None) -> Conversation:
    """The chat of `body`."""
    if not body.messages:
        raise RequestError("messages must not be empty", param="messages", code="invalid_value")
    template_kwargs = body.chat_template_kwargs or {}
    return Conversation(
        messages=tuple(_message(message, f"messages[{i}]") for i, message in enumerate(body.messages)),
        tools=_tools(body),
        reasoning_effort=_effort(body, template_kwargs),
        current_date=current_date,
        model_identity=_text_kwarg(template_kwargs, "model_identity"),
        answer_format=wanted_form(body),
    )


def unknown_template_kwargs(body: ChatCompletionRequest) -> list[str]:
    """Names inside `chat_template_kwargs` that mean nothing here."""
    given = body.chat_template_kwargs or {}
    unknown = [name for name, value in given.items() if value is not None and name not in _TEMPLATE_KWARGS]
    return [f"chat_template_kwargs.{name}" for name in unknown]


def as_client_named_it(error: RequestError, body: ChatCompletionRequest) -> RequestError:
    """The error with the name that this API, or this client, has for the parameter at fault."""
    param = error.param
    if param == "logprobs":
        param = "top_logprobs"
    elif param == "max_tokens" and body.max_completion_tokens is not None:
        param = "max_completion_tokens"
    if param == error.param:
        return error
    return RequestError(error.message, param=param, code=error.code)


def _message(message: ChatMessage, path: str) -> Message:
    return Message(
        role=message.role,
        content=_text(message.content, f"{path}.content"),
        reasoning=message.reasoning or message.reasoning_content,
        tool_calls=tuple(
            ToolCall(call.id or "", call.function.name, call.function.arguments or "")
            for call in message.tool_calls or ()
        ),
        tool_call_id=message.tool_call_id,
        name=message.name,
    )


def _text(content: str | Sequence[ContentPart] | None, path: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for i, part in enumerate(content):
        if part.type in _TEXT_PARTS:
            if part.text is None:
                raise RequestError("a text part needs a text", param=f"{path}[{i}].text", code="invalid_value")
            texts.append(part.text)
        elif part.type == "refusal":
            texts.append(part.refusal or "")
        else:
            raise unsupported(f"{path}[{i}].type", f"content parts of type {part.type!r} are not supported, only text")
    return "".join(texts)


def _tools(body: ChatCompletionRequest) -> tuple[FunctionTool, ...]:
    tools = tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or ()))
    return () if _tool_choice(body) is None else tools  # what the model is not told of, it does not call


def _tool_choice(body: ChatCompletionRequest) -> ToolChoice | None:
    choice = body.tool_choice
    return tool_choice(choice if choice is None or isinstance(choice, str) else choice.model_dump())


def _tool(tool: Tool, path: str) -> FunctionTool:
    if tool.type != "function":
        raise unsupported(f"{path}.type", f"tools of type {tool.type!r} are not supported, only functions")
    if tool.function is None:
        raise RequestError(f"{path}.function is missing", param=f"{path}.function", code="missing_required_parameter")
    function = tool.function
    return FunctionTool(function.name, function.description, function.parameters, strict=bool(function.strict))


def _effort(body: ChatCompletionRequest, template_kwargs: dict[str, Any]) -> ReasoningEffort:
    given, param = body.reasoning_effort, "reasoning_effort"
    if given is None:
        given, param = _text_kwarg(template_kwargs, "reasoning_effort"), "chat_template_kwargs.reasoning_effort"
    return reasoning_effort(given, param=param)


def _text_kwarg(template_kwargs: dict[str, Any], name: str) -> str | None:
    value = template_kwargs.get(name)
    if value is not None and not isinstance(value, str):
        param = f"chat_template_kwargs.{name}"
        raise RequestError(f"{param} must be a string", param=param, code="invalid_type")
    return value


def _sampling_params(body: ChatCompletionRequest) -> SamplingParams:
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs", code="invalid_value")
    return sampling_params(
        body,
        n=body.n,
        max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
