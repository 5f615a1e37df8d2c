"""Conversations to prompts.

Each piece of text is encoded on its own and as text, with the control tokens set between the pieces, so that nothing
a client sends can become a control token. The pieces are cut where the reference renderer cuts them: the cuts decide
the token ids.
"""

from collections.abc import Iterator, Sequence

from rose.chat.answer_format import JsonFormat, told_format
from rose.chat.conversation import Conversation, Message, ToolCall
from rose.chat.harmony.control import CHANNELS, ControlTokens
from rose.chat.harmony.tools import NAMESPACE, PREFIX, render_builtin_tools, render_tools
from rose.chat.tokenizer import Tokenizer
from rose.errors import RequestError

IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
KNOWLEDGE_CUTOFF = "2024-06"


class Renderer:
    """Writes conversations as token ids."""

    def __init__(self, tokenizer: Tokenizer, control: ControlTokens) -> None:
        self._encode = tokenizer.encode
        self._control = control

    def render(self, conversation: Conversation) -> list[int]:
        """The prompt, ending in what opens the assistant's turn."""
        num_leading, developer_text = _developer_text(conversation)
        ids = self._message("system", _system_text(conversation))
        if developer_text:
            ids += self._message("developer", developer_text)
        for part in self._history(conversation.messages, num_leading):
            ids += part
        return [*ids, self._control.start, *self._encode("assistant")]

    def _history(self, messages: Sequence[Message], first: int) -> Iterator[list[int]]:
        last_final = max((i for i, message in enumerate(messages) if _is_final_answer(message)), default=-1)
        calls: dict[str, ToolCall] = {}
        for i, message in enumerate(messages[first:], start=first):
            match message.role:
                case "assistant":
                    yield from self._assistant(message, keep_reasoning=i > last_final)
                    calls |= {call.id: call for call in message.tool_calls}
                case "tool":
                    call = calls.get(message.tool_call_id or "")
                    if call is None or not call.is_builtin:
                        name = PREFIX + _answered_tool(message, call)
                        yield self._message(name, message.content, recipient="assistant", channel="commentary")
                    elif i > last_final:  # what built-in tools answer is part of the reasoning
                        yield self._message(call.name, message.content, recipient="assistant", channel="analysis")
                case "user":
                    yield self._message("user", message.content)
                case _ if message.content:
                    yield self._message("developer", _instructions(message.content))

    def _assistant(self, message: Message, *, keep_reasoning: bool) -> Iterator[list[int]]:
        if message.reasoning and keep_reasoning:
            yield self._message("assistant", message.reasoning, channel="analysis")
        if message.content:
            channel = "commentary" if message.tool_calls else "final"
            yield self._message("assistant", message.content, channel=channel)
        for call in message.tool_calls:
            if not call.is_builtin:
                yield self._call(call)
            elif keep_reasoning:
                yield self._builtin_call(call)

    def _message(self, role: str, content: str, *, recipient: str = "", channel: str = "") -> list[int]:
        ids = [self._control.start, *self._encode(role)]
        if recipient:
            ids += self._encode(f" to={recipient}")
        if channel:
            ids += [self._control.channel, *self._encode(channel)]
        return [*ids, self._control.message, *self._encode(content), self._control.end]

    def _call(self, call: ToolCall) -> list[int]:
        # The model itself mostly writes the recipient after the channel, so its calls come back as it sampled them.
        return [
            self._control.start,
            *self._encode("assistant"),
            self._control.channel,
            *self._encode("commentary"),
            *self._encode(f" to={PREFIX}{call.name}"),
            *self._encode(" "),
            self._control.constrain,
            *self._encode("json"),
            self._control.message,
            *self._encode(call.arguments),
            self._control.call,
        ]

    def _builtin_call(self, call: ToolCall) -> list[int]:
        return [
            self._control.start,
            *self._encode("assistant"),
            self._control.channel,
            *self._encode(f"analysis to={call.name} code"),
            self._control.message,
            *self._encode(call.arguments),
            self._control.call,
        ]


def _system_text(conversation: Conversation) -> str:
    about = [conversation.model_identity or IDENTITY, f"Knowledge cutoff: {KNOWLEDGE_CUTOFF}"]
    if conversation.current_date:
        about.append(f"Current date: {conversation.current_date}")
    channels = f"# Valid channels: {', '.join(CHANNELS)}. Channel must be included for every message."
    if conversation.tools:
        channels += f"\nCalls to these tools must go to the commentary channel: '{NAMESPACE}'."
    tools = [render_builtin_tools(conversation.builtin_tools)] if conversation.builtin_tools else []
    return "\n\n".join(["\n".join(about), f"Reasoning: {conversation.reasoning_effort}", *tools, channels])


def _developer_text(conversation: Conversation) -> tuple[int, str]:
    """The developer message at the head, and how many of the messages went into it.

    Those are the system and developer messages before the first of another role. One that comes later is rendered in
    its place: moving it up would change what it refers to, and lose the cached prefix.
    """
    num_leading = conversation.num_leading
    texts = [message.content for message in conversation.messages[:num_leading] if message.content]
    sections = [_instructions("\n\n".join(texts))] if texts else []
    if conversation.tools:
        sections.append(render_tools(conversation.tools))
    if isinstance(conversation.answer_format, JsonFormat) and conversation.answer_format.name:
        sections.append(told_format(conversation.answer_format))
    return num_leading, "\n\n".join(sections)


def _instructions(text: str) -> str:
    return f"# Instructions\n\n{text}"


def _is_final_answer(message: Message) -> bool:
    return message.role == "assistant" and bool(message.content) and not message.tool_calls


def _answered_tool(message: Message, call: ToolCall | None) -> str:
    """The name of the function whose result this is."""
    name = (call.name if call else None) or message.name
    if not name:
        raise RequestError(
            "a tool message must answer a call made before it: "
            f"no earlier assistant message has a tool call with the id {message.tool_call_id!r}",
            param="messages",
        )
    return name.removeprefix(PREFIX)
