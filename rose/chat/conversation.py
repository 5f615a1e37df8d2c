"""A chat, in no vendor's wire format: what the APIs are turned into and what a `ChatFormat` renders."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rose.chat.answer_format import AnswerFormat

Role = Literal["system", "developer", "user", "assistant", "tool"]
ReasoningEffort = Literal["low", "medium", "high"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the assistant made. `arguments` is the string it wrote: JSON as a rule, never checked here.

    is_builtin: the call is of a `BuiltinTool`, and `name` one of its recipients.
    """

    id: str
    name: str
    arguments: str
    is_builtin: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    reasoning: an assistant message's analysis, if the client gave it back. tool_calls: calls this assistant message
    makes after its content. tool_call_id: on a tool message, the id of the call it answers; name: the tool's name, for
    a client that sends it instead.
    """

    role: Role
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function the model may call. `parameters` is a JSON schema of an object, or None for no parameters.

    strict: the arguments of its calls must fit `parameters`.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class BuiltinTool:
    """A tool that the model was trained to use while it thinks, and that whoever serves the model runs.

    functions: what can be called, each with JSON; none means that the tool itself is called, with free text such as
    source code.
    """

    name: str
    description: str
    functions: tuple[FunctionTool, ...] = ()

    @property
    def recipients(self) -> tuple[str, ...]:
        """The names under which the model calls it."""
        return tuple(f"{self.name}.{function.name}" for function in self.functions) or (self.name,)


@dataclass(frozen=True, slots=True)
class Conversation:
    """All that shapes a prompt.

    current_date: `YYYY-MM-DD`, or None to leave the date out (then the same chat renders alike on every day).
    model_identity: the first sentence of the system message, or None for the format's own.
    answer_format: the form that the text of the answer must have, or None for any. builtin_tools: only for formats
    whose models know such.
    """

    messages: tuple[Message, ...]
    tools: tuple[FunctionTool, ...] = ()
    reasoning_effort: ReasoningEffort = "medium"
    current_date: str | None = None
    model_identity: str | None = None
    answer_format: AnswerFormat | None = None
    builtin_tools: tuple[BuiltinTool, ...] = ()

    @property
    def num_leading(self) -> int:
        """How many messages stand at the head, of the system or the developer, before the chat proper begins."""
        instructing = ("system", "developer")
        return next((i for i, m in enumerate(self.messages) if m.role not in instructing), len(self.messages))
