"""Sampled tokens that follow a prompt of plain text: no roles, no channels, all of it is content."""

from rose.chat.answer_format import AnswerFormat
from rose.chat.detokenizer import Detokenizer
from rose.chat.events import ChatEvent, ContentDelta, Finished, finish_reason
from rose.chat.format import Section
from rose.chat.grammar import answer_rule
from rose.chat.tokenizer import Tokenizer


def plain_text_grammar(wanted: AnswerFormat) -> str:
    """The grammar of a continuation of the wanted form: that and nothing else, up to the end of the text.

    Raises `rose.errors.RequestError` with the client's name of the field if it cannot be enforced.
    """
    return f"start: {answer_rule(wanted)}\n"


class PlainTextParser:
    """A `StreamParser` for which every token is content, except control tokens, which have no text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.section: Section = "control"
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)

    def push(self, token_id: int) -> list[ChatEvent]:
        """Take the next token; return its text, unless it ends inside a character."""
        self.section = "control" if self._tokenizer.is_special(token_id) else "content"
        text = self._detokenizer.push(token_id)
        return [ContentDelta(text)] if text else []

    def finish(self, reason: str) -> list[ChatEvent]:
        """End the text: what is held back of a character, then `Finished`."""
        rest = self._detokenizer.flush()
        finished = Finished(finish_reason(reason))
        return [ContentDelta(rest), finished] if rest else [finished]
