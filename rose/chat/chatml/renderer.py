"""Conversations to prompts, by a template."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rose.chat.answer_format import JsonFormat, told_format
from rose.chat.chatml.files import TemplateFiles
from rose.chat.chatml.guard import Guard
from rose.chat.chatml.plain import PLAIN_TEMPLATE
from rose.chat.chatml.template import Arguments, Template, clock
from rose.chat.conversation import Conversation, FunctionTool, Message
from rose.chat.tokenizer import Tokenizer
from rose.errors import RequestError


@dataclass(frozen=True, slots=True)
class GuardedPrompt:
    """A prompt as one text, in which `guard` stands where a client's words are not to be taken for control tokens."""

    text: str
    guard: str


class Renderer:
    """Writes conversations as token ids."""

    def __init__(self, tokenizer: Tokenizer, files: TemplateFiles) -> None:
        """Compile the checkpoint's template, or the plain one. Raises `CheckpointError`."""
        self._encode = tokenizer.encode_with_special
        self._guard = Guard(tokenizer.added_names)
        self._tokens = files.tokens
        self._template = Template(files.template or PLAIN_TEMPLATE, files.where)
        with_tools = files.template_with_tools
        self._template_with_tools = Template(with_tools, files.where) if with_tools else self._template

    def render(self, conversation: Conversation) -> list[int]:
        """The prompt, ending in what opens the assistant's turn."""
        prompt = self.write(conversation)
        return self._encode(prompt.text, guard=prompt.guard)

    def write(self, conversation: Conversation) -> GuardedPrompt:
        """The same as text. Raises `RequestError` for a conversation that the template refuses."""
        if conversation.builtin_tools:
            raise RequestError("this model's chat format knows no built-in tools", param="tools")
        template = self._template_with_tools if conversation.tools else self._template
        messages, tools = _messages(conversation), [_tool(tool) for tool in conversation.tools] or None
        guard = self._guard.choose(messages, tools, template.source)
        variables: dict[str, Any] = {
            **self._tokens,
            "messages": [self._protect(message, guard) for message in messages],
            "tools": tools and [{**tool, "function": self._guard.protect(tool["function"], guard)} for tool in tools],
            "documents": None,
            "add_generation_prompt": True,
            "reasoning_effort": conversation.reasoning_effort,
        }
        if conversation.current_date:
            variables["strftime_now"] = clock(conversation.current_date)
        return GuardedPrompt(template.render(variables), guard)

    def _protect(self, message: dict[str, Any], guard: str) -> dict[str, Any]:
        protected = {key: self._guard.protect(value, guard) for key, value in message.items() if key != "tool_calls"}
        protected["role"] = message["role"]
        if calls := message.get("tool_calls"):
            protected["tool_calls"] = [self._protect_call(call, guard) for call in calls]
        return protected

    def _protect_call(self, call: dict[str, Any], guard: str) -> dict[str, Any]:
        function = call["function"]
        written = self._guard.protect(function["arguments"], guard)
        values = _object(function["arguments"])
        return {
            "type": "function",
            "id": self._guard.protect(call["id"], guard),
            "function": {
                "name": self._guard.protect(function["name"], guard),
                "arguments": written if values is None else Arguments(self._guard.protect(values, guard), written),
            },
        }


def _messages(conversation: Conversation) -> list[dict[str, Any]]:
    """The messages as templates expect them: instructions at the head in one, all of them the system's."""
    messages, num_leading = conversation.messages, conversation.num_leading
    texts = [conversation.model_identity, *(message.content for message in messages[:num_leading])]
    if isinstance(wanted := conversation.answer_format, JsonFormat) and wanted.name:
        texts.append(told_format(wanted))
    head = "\n\n".join(text for text in texts if text)
    return [*([{"role": "system", "content": head}] if head else []), *_history(messages[num_leading:])]


def _history(messages: Sequence[Message]) -> list[dict[str, Any]]:
    names: dict[str, str] = {}
    history: list[dict[str, Any]] = []
    for message in messages:
        written: dict[str, Any] = {"role": message.role, "content": message.content}
        match message.role:
            case "assistant":
                names |= {call.id: call.name for call in message.tool_calls}
                if message.reasoning:
                    written |= {"reasoning_content": message.reasoning, "thinking": message.reasoning}
                if message.tool_calls:
                    written["tool_calls"] = [
                        {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
                        for call in message.tool_calls
                    ]
            case "tool":
                written["tool_call_id"] = message.tool_call_id or ""
                written["name"] = names.get(message.tool_call_id or "") or message.name or ""
            case "system" | "developer":
                if not message.content:
                    continue
                written["role"] = "system"
        history.append(written)
    return history


def _tool(tool: FunctionTool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters if tool.parameters is not None else {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _object(arguments: str) -> dict[str, Any] | None:
    """The values of arguments that are a JSON object."""
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None
