"""The marks that structure ChatML, found by name in the checkpoint's own tokenizer.

Most tokenizers have tokens of their own for the tags around reasoning and calls; then only those tokens are tags, and
the same characters are text. For a tag without a token its characters are all there is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from rose.chat.tokenizer import Tokenizer
from rose.errors import CheckpointError

MESSAGE_START = "<|im_start|>"
MESSAGE_END = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"


class Tag(Enum):
    """A tag of an answer."""

    THINK = "<think>"
    THINK_END = "</think>"
    CALL = "<tool_call>"
    CALL_END = "</tool_call>"


@dataclass(frozen=True, slots=True)
class Markup:
    """Ids of the marks.

    message_start: opens a message, if there is such a token. ends: ids that end the assistant's turn, besides that of
    `Tag.CALL_END`. tags: those that are tokens, by id. spelled: those that are not.
    """

    message_start: int | None
    ends: tuple[int, ...]
    tags: Mapping[int, Tag]
    spelled: tuple[Tag, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer, end_names: tuple[str, ...] = ()) -> "Markup":
        """Look the marks up; end_names: tokens of which the checkpoint says that they end its turn.

        Raises `CheckpointError` if nothing can end a turn, or if plain text could be taken for a mark.
        """
        named = (MESSAGE_END, END_OF_TEXT, *end_names)
        ends = tuple(dict.fromkeys(i for i in map(tokenizer.control_id, named) if i is not None))
        if not ends:
            raise CheckpointError(
                f"{tokenizer.source}: no token {MESSAGE_END}, and tokenizer_config.json names no eos_token, "
                "one of which the chatml chat format needs"
            )
        ids = {tag: tokenizer.control_id(tag.value) for tag in Tag}
        return cls(
            message_start=tokenizer.control_id(MESSAGE_START),
            ends=ends,
            tags={i: tag for tag, i in ids.items() if i is not None},
            spelled=tuple(tag for tag, i in ids.items() if i is None),
        )

    def id_of(self, tag: Tag) -> int | None:
        """The id of a tag; None if it is spelled."""
        return next((i for i, known in self.tags.items() if known is tag), None)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end the assistant's turn: a call ends it too, so that the next turn knows its result."""
        call_end = self.id_of(Tag.CALL_END)
        return self.ends if call_end is None else (*self.ends, call_end)
