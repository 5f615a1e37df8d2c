"""Sampled tokens to events: a parser that takes whatever a model can sample.

A turn is reasoning between `<think>` and `</think>`, content, and at most one call between `<tool_call>` and
`</tool_call>`, which ends it. docs/chatml.md lists what is done where a model does not keep to that.
"""

from rose.chat.chatml.call import CallReader
from rose.chat.chatml.markup import Markup, Tag
from rose.chat.chatml.recovery import Recovery
from rose.chat.chatml.writer import AnswerWriter, TextKind
from rose.chat.detokenizer import Detokenizer
from rose.chat.events import ChatEvent
from rose.chat.format import Section
from rose.chat.tokenizer import Tokenizer

_ASSISTANT = "assistant"


class ChatMLParser:
    """Reads the tokens of one completion; opens_reasoning: the prompt ended in `<think>`."""

    def __init__(self, tokenizer: Tokenizer, markup: Markup, *, opens_reasoning: bool) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._markup = markup
        self._detokenizer = Detokenizer(tokenizer)
        self._writer = AnswerWriter()
        self._section: Section = "control"
        self._kind: TextKind = "content"
        self._call: CallReader | None = None
        self._before_call = ""  # line feeds that would not be shown in front of a call
        self._role: list[str] | None = None  # the text so far of a message's first line, while it is being read
        self._is_over = False
        # Spelled tags.
        self._pending = ""  # may be the beginning of a tag
        self._is_line_blank = True
        if opens_reasoning:
            self._open_reasoning()

    @property
    def section(self) -> Section:
        """What the token pushed last was part of; `control` for tags and the lines that open messages."""
        return self._section

    def push(self, token_id: int) -> list[ChatEvent]:
        """Take the next token; return what is known by now."""
        self._section = "control"
        if self._is_over:
            return []
        if token_id in self._markup.ends:
            self._end_text()
            self._end_message(cut=False)
            self._is_over = True
        elif token_id == self._markup.message_start:
            self._end_text()
            self._on_message_start()
        elif (tag := self._markup.tags.get(token_id)) is not None:
            self._end_text()
            self._on_tag(tag)
        elif data := self._token_bytes(token_id):
            self._section = self._state()
            self._text(self._detokenizer.push_bytes(data))
        else:
            self._writer.note(Recovery.STRAY_CONTROL)
        return self._writer.take()

    def finish(self, reason: str) -> list[ChatEvent]:
        """The stream is over, for the engine's `reason`. The last event is `Finished`."""
        if not self._is_over:
            self._end_text()
            self._end_message(cut=reason != "stop")
            self._is_over = True
        self._section = "control"
        self._writer.finish(reason)
        return self._writer.take()

    def _state(self) -> Section:
        if self._role is not None:
            return "control"
        return self._kind if self._call is None else "tool_call"

    # Text.

    def _text(self, text: str) -> None:
        """Read text, and the tags in it that are spelled."""
        if not self._markup.spelled:
            self._plain(text)
            return
        self._pending += text
        while self._pending and not self._is_over:
            before, sign, _ = self._pending.partition("<")
            if before:
                self._pending = self._pending[len(before) :]
                self._plain(before)
            elif sign and (tag := self._spelled_tag()) is not None:
                if not self._pending.startswith(tag.value):
                    return  # more must come to tell
                self._pending = self._pending[len(tag.value) :]
                self._section = "control"
                self._on_tag(tag)
            else:
                self._pending = self._pending[1:]
                self._plain(sign)

    def _spelled_tag(self) -> Tag | None:
        """The tag that begins here, or may begin here as far as is known."""
        for tag in self._markup.spelled:
            if self._is_expected(tag) and (self._pending.startswith(tag.value) or tag.value.startswith(self._pending)):
                return tag
        return None

    def _is_expected(self, tag: Tag) -> bool:
        """Whether the characters of a tag are one here. An opening one stands on a line of its own."""
        if self._role is not None:
            return False
        if self._call is not None and (self._call.in_string or tag is Tag.THINK):
            return False
        if tag is Tag.CALL_END:
            return self._call is not None
        if tag is Tag.CALL:
            return self._is_line_blank
        return tag is Tag.THINK_END if self._kind == "reasoning" else tag is Tag.THINK and self._is_line_blank

    def _plain(self, text: str) -> None:
        """Add text in which there are no tags to where it belongs."""
        if self._role is not None:
            first_line, line_feed, text = text.partition("\n")
            self._role.append(first_line)
            if not line_feed:
                return
            self._end_role()
        if self._is_over or not text:
            return
        last_line = text.rpartition("\n")
        self._is_line_blank = (self._is_line_blank or bool(last_line[1])) and not last_line[2].strip()
        if self._call is None:
            self._writer.text(self._kind, text)
            return
        is_named = self._call.name is not None
        arguments = self._call.push(text)
        if not is_named and self._call.name is not None:
            self._writer.open_call(self._call.name)
        self._writer.arguments(arguments)

    def _end_text(self) -> None:
        """No more text can be added to what was read: what may have been the beginning of something is all of it."""
        if rest := self._detokenizer.flush():
            self._writer.note(Recovery.INCOMPLETE_CHARACTER)
            self._text(rest)
        pending, self._pending = self._pending, ""
        if pending and not self._is_over:
            self._plain(pending)

    # Tags.

    def _on_tag(self, tag: Tag) -> None:
        if self._role is not None:
            self._end_role()
            if self._is_over:
                return
        if self._call is not None and (tag is Tag.THINK or (tag is Tag.THINK_END and self._kind == "content")):
            self._writer.note(Recovery.STRAY_TAG)
            return
        if self._call is not None:
            self._end_call(cut=False, closed=tag is Tag.CALL_END)
            if self._is_over or tag is Tag.CALL_END:
                return
        if tag is Tag.CALL:
            self._open_call()
        elif tag is Tag.THINK and self._kind == "content":
            self._writer.end_text("content", before_tag=True)
            self._open_reasoning()
        elif tag is Tag.THINK_END and self._kind == "reasoning":
            self._writer.end_text("reasoning", before_tag=True)
            self._kind = "content"
            self._is_line_blank = True
            self._writer.skip_line_feeds(2)
        else:
            self._writer.note(Recovery.STRAY_TAG)

    def _open_reasoning(self) -> None:
        self._kind = "reasoning"
        self._is_line_blank = True
        self._writer.skip_line_feeds(1)

    def _open_call(self) -> None:
        self._before_call = self._writer.end_text(self._kind, before_tag=True)
        self._call = CallReader()
        self._is_line_blank = True

    def _end_call(self, *, cut: bool, closed: bool) -> None:
        """End the open call. One that was whole ends the turn; what is none goes back where it stood."""
        call, self._call = self._call, None
        assert call is not None
        if call.name is None:
            whole = None if cut else call.whole()
            if whole is None:
                self._writer.note(Recovery.NOT_A_CALL)
                end = Tag.CALL_END.value if closed else ""
                self._writer.text(self._kind, f"{self._before_call}{Tag.CALL.value}{call.body}{end}")
                return
            self._writer.note(Recovery.ODD_CALL)
            self._writer.open_call(whole.name)
            self._writer.arguments(whole.arguments)
        elif call.has_rest:
            self._writer.note(Recovery.STRAY_TEXT)
        if self._kind == "reasoning":
            self._writer.note(Recovery.MISSING_THINK_END)
        if not (closed or cut):
            self._writer.note(Recovery.MISSING_CALL_END)
        self._writer.close_call(cut=cut)
        self._is_over = True

    # Messages.

    def _end_message(self, *, cut: bool) -> None:
        if self._role is not None:
            role, self._role = "".join(self._role), None
            if not _ASSISTANT.startswith(role.strip()):
                self._writer.set_aside(role)
        if self._call is not None:
            self._end_call(cut=cut, closed=False)
        if self._kind == "reasoning" and not (cut or self._is_over):
            self._writer.note(Recovery.MISSING_THINK_END)
        self._writer.end_text(self._kind, before_tag=False)

    def _on_message_start(self) -> None:
        if self._role is None:
            self._writer.note(Recovery.MISSING_END)
        self._end_message(cut=False)
        if not self._is_over:
            self._role = []

    def _end_role(self) -> None:
        """Whose message it is, is known: the assistant's goes on, and any other ends the turn."""
        role, self._role = "".join(self._role or ()), None
        if role.strip() == _ASSISTANT:
            self._kind = "content"
            self._is_line_blank = True
        else:
            self._writer.note(Recovery.FOREIGN_ROLE)
            self._is_over = True
