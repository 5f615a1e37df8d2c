"""From the request body to what the generator takes; refusals name their field."""

from collections.abc import Iterator, Sequence

import msgspec

from rose.chat.answer_format import AnswerFormat, ToolChoice
from rose.chat.conversation import Conversation, FunctionTool, Message, ReasoningEffort, ToolCall
from rose.errors import RequestError
from rose.server.constraints import answer_format
from rose.server.effort import reasoning_effort
from rose.server.errors import unsupported
from rose.server.generation import GenerationRequest
from rose.server.messages.schema import Block, CountTokensRequest, InputMessage, MessagesRequest, ResultPart
from rose.server.sampling import own_sampling_params, stop_strings

# Budgets of thinking, in tokens, up to which an effort is meant.
_LOW_BUDGET = 2048
_MEDIUM_BUDGET = 16_384


def to_generation_request(body: MessagesRequest, *, current_date: str | None) -> GenerationRequest:
    """The request that `body` asks for. Raises `RequestError` for what cannot be honoured."""
    params = own_sampling_params(
        max_tokens=body.max_tokens, temperature=body.temperature, top_p=body.top_p, top_k=body.top_k
    )
    return GenerationRequest(
        conversation=to_conversation(body, current_date=current_date),
        sampling_params=params,
        stop=stop_strings(body.stop_sequences, param="stop_sequences"),
        tool_choice=_tool_choice(body),
        may_exceed_context=True,  # this API demands a limit, so clients give one that no answer reaches
    )


def to_conversation(body: CountTokensRequest, *, current_date: str | None) -> Conversation:
    """The chat of `body`."""
    if not body.messages:
        raise RequestError("messages must not be empty", param="messages", code="invalid_value")
    if body.messages[-1].role == "assistant":
        raise unsupported("messages", "the last message must not be the assistant's: answers cannot be begun for it")
    system = [Message("system", _texts(body.system, "system"))] if body.system else []
    turns = [part for i, each in enumerate(body.messages) for part in _messages(each, f"messages[{i}]")]
    return Conversation(
        messages=(*system, *turns),
        tools=_offered_tools(body),
        reasoning_effort=_effort(body),
        current_date=current_date,
        answer_format=_answer_format(body),
    )


def ignored_inside(body: CountTokensRequest) -> list[str]:
    """The tools that are left out, by their type."""
    return list(dict.fromkeys(f"tools.{tool.type}" for tool in body.tools or () if not _is_function(tool.type)))


def as_client_named_it(error: RequestError) -> RequestError:
    """The error with the name that this API has for the parameter at fault."""
    if error.param != "stop":
        return error
    return RequestError(error.message, param="stop_sequences", code=error.code)


def _messages(message: InputMessage, path: str) -> Iterator[Message]:
    """A message as the chat's messages, of which tools' results are some of their own."""
    content = message.content
    if isinstance(content, str):
        yield Message(message.role, content)
        return
    if message.role == "assistant":
        yield _assistants(content, f"{path}.content")
        return
    texts: list[str] = []
    for i, block in enumerate(content):
        place = f"{path}.content[{i}]"
        if block.type == "tool_result":
            if texts:
                yield Message(message.role, "\n\n".join(texts))
                texts = []
            result = _texts(block.content or "", f"{place}.content")
            yield Message("tool", result, tool_call_id=_needed(block.tool_use_id, f"{place}.tool_use_id"))
        elif block.type == "text":
            texts.append(_needed(block.text, f"{place}.text"))
        else:
            raise unsupported(f"{place}.type", f"content blocks of type {block.type!r} are not supported here")
    if texts:
        yield Message(message.role, "\n\n".join(texts))


def _assistants(blocks: Sequence[Block], path: str) -> Message:
    thinking: list[str] = []
    texts: list[str] = []
    calls: list[ToolCall] = []
    for i, block in enumerate(blocks):
        place = f"{path}[{i}]"
        match block.type:
            case "thinking":
                thinking.append(block.thinking or "")
            case "text":
                texts.append(_needed(block.text, f"{place}.text"))
            case "tool_use":
                arguments = msgspec.json.encode(block.input if block.input is not None else {}).decode()
                call_id = _needed(block.id, f"{place}.id")
                calls.append(ToolCall(call_id, _needed(block.name, f"{place}.name"), arguments))
            case "redacted_thinking":
                pass  # never made here, and nobody can read it
            case other:
                raise unsupported(f"{place}.type", f"content blocks of type {other!r} are not supported here")
    return Message("assistant", "".join(texts), "\n\n".join(thinking) or None, tuple(calls))


def _texts(content: str | Sequence[ResultPart], path: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for i, part in enumerate(content):
        if part.type != "text":
            raise unsupported(f"{path}[{i}].type", f"blocks of type {part.type!r} are not supported, only text")
        texts.append(_needed(part.text, f"{path}[{i}].text"))
    return "\n\n".join(texts)


def _needed(value: str | None, param: str) -> str:
    if value is None:
        raise RequestError(f"{param} is missing", param=param, code="missing_required_parameter")
    return value


def _offered_tools(body: CountTokensRequest) -> tuple[FunctionTool, ...]:
    if body.tool_choice is not None and body.tool_choice.type == "none":
        return ()  # what the model is not told of, it does not call
    return tuple(
        FunctionTool(tool.name, tool.description, tool.input_schema, strict=bool(tool.strict))
        for tool in body.tools or ()
        if _is_function(tool.type)
    )


def _tool_choice(body: CountTokensRequest) -> ToolChoice:
    choice = body.tool_choice
    if choice is None or choice.type in ("auto", "none"):
        return ToolChoice()
    if choice.type == "any":
        return ToolChoice("required")
    return ToolChoice("required", (_needed(choice.name, "tool_choice.name"),))


def _is_function(kind: str | None) -> bool:
    return kind in (None, "custom")


def _effort(body: CountTokensRequest) -> ReasoningEffort:
    """The effort, by its name, else by the budget for thinking, which gpt-oss cannot count."""
    if body.output_config and body.output_config.effort:
        return reasoning_effort(body.output_config.effort, param="output_config.effort")
    thinking = body.thinking
    if thinking is None or thinking.type == "adaptive" or (thinking.type == "enabled" and not thinking.budget_tokens):
        return "medium"
    budget = thinking.budget_tokens or 0
    if thinking.type == "disabled" or budget <= _LOW_BUDGET:
        return "low"
    return "medium" if budget <= _MEDIUM_BUDGET else "high"


def _answer_format(body: CountTokensRequest) -> AnswerFormat | None:
    if body.output_config is not None and body.output_config.format is not None:
        return answer_format(body.output_config.format.model_dump(), param="output_config.format")
    if body.output_format is not None:
        return answer_format(body.output_format.model_dump(), param="output_format")
    return None
