"""ChatML as a `ChatFormat`."""

from collections.abc import Sequence

from rose.chat.answer_format import ToolChoice
from rose.chat.chatml.files import has_template, read_template_files
from rose.chat.chatml.grammar import TurnGrammar
from rose.chat.chatml.markup import MESSAGE_END, MESSAGE_START, Markup, Tag
from rose.chat.chatml.parser import ChatMLParser
from rose.chat.chatml.renderer import Renderer
from rose.chat.conversation import Conversation, Message
from rose.chat.format import StreamParser
from rose.chat.tokenizer import Tokenizer
from rose.errors import RequestError

_NUM_LAST_TOKENS = 32  # more than a template writes behind `<think>`, or spells it with
_USUAL = Conversation((Message("user", "Hello"),))


class ChatMLFormat:
    """Renders conversations and makes parsers, with one checkpoint's tokenizer and chat template."""

    name = "chatml"

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Read the files beside the tokenizer, too. Raises `CheckpointError`."""
        files = read_template_files(tokenizer.folder)
        end_of_turn = files.tokens.get("eos_token")
        self._tokenizer = tokenizer
        self._markup = Markup.of(tokenizer, (end_of_turn,) if end_of_turn else ())
        self._renderer = Renderer(tokenizer, files)
        self._grammar = TurnGrammar(self._markup)

    @classmethod
    def suits(cls, tokenizer: Tokenizer) -> bool:
        """Whether the tokenizer has ChatML's tokens, or there is a chat template beside it."""
        has_tokens = all(tokenizer.special_id(name) is not None for name in (MESSAGE_START, MESSAGE_END))
        return has_tokens or has_template(tokenizer.folder)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end the assistant's turn: `<|im_end|>` or the checkpoint's own, and `</tool_call>`."""
        return self._markup.stop_ids

    def render(self, conversation: Conversation) -> list[int]:
        """The prompt, up to and including what the template opens the assistant's turn with."""
        return self._renderer.render(conversation)

    def grammar(self, conversation: Conversation, tool_choice: ToolChoice) -> str | None:
        """The grammar of the whole turn, reasoning free; None if nothing is demanded of it."""
        prompt = self._renderer.write(conversation)
        opens_reasoning = prompt.text.rstrip().endswith(Tag.THINK.value)
        return self._grammar.write(conversation, tool_choice, opens_reasoning=opens_reasoning)

    def parser(self, prompt: Sequence[int] | None = None) -> StreamParser:
        """A new parser. Some templates open the reasoning in the prompt, so that the answer begins inside."""
        if prompt is None:
            prompt = self._usual_prompt()
        last = self._tokenizer.decode(list(prompt[-_NUM_LAST_TOKENS:]), keep_special=True)
        opens_reasoning = last.rstrip().endswith(Tag.THINK.value)
        return ChatMLParser(self._tokenizer, self._markup, opens_reasoning=opens_reasoning)

    def _usual_prompt(self) -> Sequence[int]:
        try:
            return self._renderer.render(_USUAL)
        except RequestError:  # a template that needs more than that
            return ()
