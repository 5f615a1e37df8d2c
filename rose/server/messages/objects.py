"""The JSON objects of the Messages API: a message, its blocks, and the events of a stream."""

from typing import Any, Literal

import msgspec

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class _Tagged(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of what tells its kind in `type`."""


class ThinkingBlock(_Tagged, frozen=True, kw_only=True, tag="thinking"):
    """The reasoning before what follows it. The signature proves nothing here, but clients drop blocks without one."""

    thinking: str = ""
    signature: str = ""


class TextBlock(_Tagged, frozen=True, kw_only=True, tag="text"):
    """Text for the user."""

    text: str = ""
    citations: None = None


class ToolUseBlock(_Tagged, frozen=True, kw_only=True, tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any] = {}


ContentBlock = ThinkingBlock | TextBlock | ToolUseBlock


class TokenCount(msgspec.Struct, frozen=True):
    """The length of a prompt."""

    input_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts. `input_tokens` are those of the prompt that the prefix cache did not have."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int


class Message(_Tagged, frozen=True, kw_only=True, tag="message"):
    """The answer, whole or as it is at the beginning of a stream."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock] = []
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: Usage


class TextDelta(_Tagged, frozen=True, kw_only=True, tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(_Tagged, frozen=True, kw_only=True, tag="thinking_delta"):
    """More thinking."""

    thinking: str


class SignatureDelta(_Tagged, frozen=True, kw_only=True, tag="signature_delta"):
    """The end of the thinking."""

    signature: str


class InputJsonDelta(_Tagged, frozen=True, kw_only=True, tag="input_json_delta"):
    """More of a call's arguments."""

    partial_json: str


Delta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class StreamEvent(_Tagged, frozen=True, kw_only=True):
    """Base of all events; the name also stands in the `event:` line of the frame."""

    @property
    def event_type(self) -> str:
        """The event's `type`."""
        return str(self.__struct_config__.tag)


class MessageStart(StreamEvent, frozen=True, kw_only=True, tag="message_start"):
    """The first event."""

    message: Message


class Ping(StreamEvent, frozen=True, kw_only=True, tag="ping"):
    """Means nothing."""


class ContentBlockStart(StreamEvent, frozen=True, kw_only=True, tag="content_block_start"):
    """A block begins."""

    index: int
    content_block: ContentBlock


class ContentBlockDelta(StreamEvent, frozen=True, kw_only=True, tag="content_block_delta"):
    """A block grows."""

    index: int
    delta: Delta


class ContentBlockStop(StreamEvent, frozen=True, kw_only=True, tag="content_block_stop"):
    """A block is over."""

    index: int


class MessageEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Why the message ended."""

    stop_reason: StopReason
    stop_sequence: str | None = None


class MessageDelta(StreamEvent, frozen=True, kw_only=True, tag="message_delta"):
    """The message is over; its usage."""

    delta: MessageEnd
    usage: Usage


class MessageStop(StreamEvent, frozen=True, kw_only=True, tag="message_stop"):
    """The last event."""
