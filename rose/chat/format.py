"""The seam every chat format fills: conversations to token ids, sampled token ids to events."""

from collections.abc import Sequence
from typing import Literal, Protocol

from rose.chat.answer_format import ToolChoice
from rose.chat.conversation import Conversation
from rose.chat.events import ChatEvent
from rose.chat.tokenizer import Tokenizer

Section = Literal["control", "reasoning", "content", "tool_call"]


class StreamParser(Protocol):
    """Reads one completion's tokens. Never raises on anything a model can sample; not to be used after `finish`."""

    @property
    def section(self) -> Section:
        """What the token pushed last was part of; `control` for headers and control tokens."""
        ...

    def push(self, token_id: int) -> list[ChatEvent]:
        """Take the next token; return what is known by now, often nothing."""
        ...

    def finish(self, reason: str) -> list[ChatEvent]:
        """The stream is over, for the engine's `reason` (stop, length, abort, error). The last event is `Finished`."""
        ...


class ChatFormat(Protocol):
    """A model family's way of writing chats as tokens."""

    @property
    def name(self) -> str:
        """The name it is registered under."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end the assistant's turn."""
        ...

    def render(self, conversation: Conversation) -> list[int]:
        """The prompt, up to and including what opens the assistant's turn. The same chat always gives the same ids.

        Raises `rose.errors.RequestError` for a conversation that cannot be rendered.
        """
        ...

    def grammar(self, conversation: Conversation, tool_choice: ToolChoice) -> str | None:
        """What the assistant's turn must look like, for an engine to enforce; None if nothing is demanded of it.

        The grammar is one of llguidance's, in Lark, over all that is sampled after `render`'s prompt. Raises
        `rose.errors.RequestError`, naming the client's field, for what cannot be enforced or met.
        """
        ...

    def parser(self, prompt: Sequence[int] | None = None) -> StreamParser:
        """A new parser, for the ids sampled after `prompt`, which `render` made; None is any usual one."""
        ...


class FormatType(Protocol):
    """A class of chat formats, as the registry holds it."""

    def __call__(self, tokenizer: Tokenizer) -> ChatFormat:
        """The format of a checkpoint. Raises `rose.errors.CheckpointError` if it cannot be of this format."""
        ...

    def suits(self, tokenizer: Tokenizer) -> bool:
        """Whether a checkpoint looks like one of this format, going by its tokenizer and its folder's files."""
        ...
