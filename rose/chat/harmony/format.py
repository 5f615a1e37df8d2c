"""Harmony as a `ChatFormat`."""

from collections.abc import Sequence

from rose.chat.answer_format import ToolChoice
from rose.chat.conversation import Conversation
from rose.chat.format import StreamParser
from rose.chat.harmony.control import REQUIRED_NAMES, ControlTokens
from rose.chat.harmony.grammar import turn_grammar
from rose.chat.harmony.parser import HarmonyParser
from rose.chat.harmony.renderer import Renderer
from rose.chat.tokenizer import Tokenizer


class HarmonyFormat:
    """Renders conversations and makes parsers, with one checkpoint's tokenizer."""

    name = "harmony"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._control = ControlTokens.of(tokenizer)
        self._renderer = Renderer(tokenizer, self._control)

    @classmethod
    def suits(cls, tokenizer: Tokenizer) -> bool:
        """Whether the tokenizer has Harmony's control tokens."""
        return all(tokenizer.special_id(name) is not None for name in REQUIRED_NAMES)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end the assistant's turn: `<|return|>`, `<|call|>` and, where there is one, `<|endoftext|>`."""
        return self._control.stop_ids

    def render(self, conversation: Conversation) -> list[int]:
        """The prompt, up to and including `<|start|>assistant`."""
        return self._renderer.render(conversation)

    def grammar(self, conversation: Conversation, tool_choice: ToolChoice) -> str | None:
        """The grammar of the whole turn, reasoning free; None if nothing is demanded of it."""
        return turn_grammar(conversation, tool_choice, self._control)

    def parser(self, prompt: Sequence[int] | None = None) -> StreamParser:
        """A new parser. Every prompt ends alike, so it needs to know none."""
        del prompt
        return HarmonyParser(self._tokenizer, self._control)
