"""Sampled tokens to events: a parser that takes whatever a model can sample.

Two states: in a header, whose text is collected until it is whole, and in a body, whose text goes out token by token.
Control tokens move between the two. What a header means is decided in `header`, what the messages add up to in
`writer`; docs/harmony.md lists the rules.
"""

from collections.abc import Callable
from enum import Enum

from rose.chat.detokenizer import Detokenizer
from rose.chat.events import ChatEvent
from rose.chat.format import Section
from rose.chat.harmony.control import ControlTokens
from rose.chat.harmony.header import Header, HeaderReader, Mark, Opening, is_one_word, may_begin_header
from rose.chat.harmony.recovery import Recovery
from rose.chat.harmony.writer import AnswerWriter
from rose.chat.tokenizer import Tokenizer


class _State(Enum):
    HEADER = "header"
    BODY = "body"
    OVER = "over"


class _Ended(Enum):
    """How a header came to its end without `<|message|>`."""

    BY_NEXT_MESSAGE = "next message"
    BY_END = "end"  # a token that ends messages, or the end of the stream with a natural stop
    BY_CUT = "cut"  # the end of the stream for another reason


class HarmonyParser:
    """Reads the tokens of one completion, from right after `<|start|>assistant`."""

    def __init__(self, tokenizer: Tokenizer, control: ControlTokens) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._handlers: dict[int, Callable[[], None]] = {
            control.start: self._on_start,
            control.channel: self._on_channel,
            control.constrain: self._on_constrain,
            control.message: self._on_message,
            control.end: self._on_end,
            control.call: self._on_end,
            control.return_: self._on_return,
        }
        if control.end_of_text is not None:
            self._handlers[control.end_of_text] = self._on_end_of_text
        self._writer = AnswerWriter()
        self._body = Detokenizer(tokenizer)
        self._state = _State.HEADER
        self._section: Section = "control"
        self._open_header(Opening.ASSISTANT)

    @property
    def section(self) -> Section:
        """What the token pushed last was part of; `control` for headers and control tokens."""
        return self._section

    def push(self, token_id: int) -> list[ChatEvent]:
        """Take the next token; return what is known by now."""
        self._section = "control"
        if self._state is _State.OVER:
            return []
        handler = self._handlers.get(token_id)
        if handler is not None:
            handler()
            return self._writer.take()
        data = self._token_bytes(token_id)
        if not data:
            self._writer.note(Recovery.STRAY_CONTROL)
            return []
        if self._state is _State.HEADER:
            self._header_bytes += data
            return []
        self._section = self._writer.section
        if text := self._body.push_bytes(data):
            self._writer.text(text)
            return self._writer.take()
        return []

    def finish(self, reason: str) -> list[ChatEvent]:
        """The stream is over, for the engine's `reason`. The last event is `Finished`."""
        is_cut = reason != "stop"
        if self._state is _State.BODY:
            self._close_body(cut=is_cut)
        elif self._state is _State.HEADER:
            self._close_header(_Ended.BY_CUT if is_cut else _Ended.BY_END)
        self._state = _State.OVER
        self._section = "control"
        self._writer.finish(reason)
        return self._writer.take()

    # Control tokens.

    def _on_start(self) -> None:
        if self._state is _State.BODY:
            self._break_off_body()
        else:
            self._close_header(_Ended.BY_NEXT_MESSAGE)
        self._open_header(Opening.START)

    def _on_channel(self) -> None:
        if self._state is _State.BODY:
            self._break_off_body()
            self._open_header(Opening.ASSISTANT)
        elif self._read_stretch():
            self._close_header(_Ended.BY_NEXT_MESSAGE)
            self._open_header(Opening.ASSISTANT)
        self._mark = Mark.CHANNEL

    def _on_constrain(self) -> None:
        if self._state is _State.BODY:
            self._writer.note(Recovery.STRAY_CONTROL)
        else:
            self._read_stretch()
            self._mark = Mark.CONSTRAIN

    def _on_message(self) -> None:
        if self._state is _State.BODY:
            self._writer.note(Recovery.STRAY_CONTROL)
            return
        self._read_stretch()
        header = self._header.complete(has_message=True)
        if self._ends_turn(header):
            return
        if header.rest.strip():
            self._writer.set_aside(header.rest)
            if not header.unknown_channel:
                self._writer.note(Recovery.STRAY_TEXT)
        self._open_body(header)

    def _on_end(self) -> None:
        if self._state is _State.BODY:
            self._close_body(cut=False)
        else:
            self._close_header(_Ended.BY_END)
        self._open_header(Opening.END)

    def _on_return(self) -> None:
        self._on_end()
        self._state = _State.OVER

    def _on_end_of_text(self) -> None:
        self._writer.note(Recovery.END_OF_TEXT)
        self._on_return()

    # Headers.

    def _open_header(self, opening: Opening) -> None:
        """Expect a header, unless the turn was found to be over."""
        if self._state is _State.OVER:
            return
        self._state = _State.HEADER
        self._header = HeaderReader(opening)
        self._header_bytes = bytearray()
        self._header_texts: list[str] = []
        self._mark = Mark.NONE

    def _read_stretch(self) -> bool:
        """Read the header text since the last mark; return whether it runs into a body."""
        text = self._header_bytes.decode("utf-8", errors="replace")
        self._header_bytes.clear()
        self._header_texts.append(text)
        return self._header.read(self._mark, text)

    def _close_header(self, ended: _Ended) -> None:
        """Make what can be made of a header without `<|message|>`: mostly, what is left of it is the body."""
        self._read_stretch()
        header_text = "".join(self._header_texts)
        if not header_text.strip():
            return
        header = self._header.complete(has_message=False)
        if self._ends_turn(header):
            return
        if self._is_message(header, ended):
            self._writer.note(Recovery.MISSING_MESSAGE)
            self._open_body(header)
            if body := header.rest.lstrip():
                self._writer.text(body)
            self._writer.close(cut=ended is _Ended.BY_CUT)
            self._state = _State.HEADER
        elif ended is _Ended.BY_CUT:
            self._writer.note(Recovery.CUT_IN_HEADER)
            if header.unknown_channel and not is_one_word(header_text):
                self._writer.set_aside(header_text)
        else:
            self._writer.note(Recovery.STRAY_TEXT)
            self._writer.set_aside(header_text)

    def _is_message(self, header: Header, ended: _Ended) -> bool:
        """Whether a header without `<|message|>` is a message all the same."""
        rest = header.rest.strip()
        if header.tool is not None and ended is _Ended.BY_END:
            return True  # a call without arguments, or with them straight after its header
        if not rest:
            return False
        if header.tool is not None or header.channel is not None:
            return not (ended is _Ended.BY_CUT and may_begin_header(rest))
        if ended is _Ended.BY_NEXT_MESSAGE:
            return not is_one_word(rest)
        if ended is _Ended.BY_CUT:
            return not (header.unknown_channel or may_begin_header(rest))
        return True

    def _ends_turn(self, header: Header) -> bool:
        if header.foreign:
            self._writer.note(Recovery.FOREIGN_ROLE)
            self._state = _State.OVER
        return header.foreign

    # Bodies.

    def _open_body(self, header: Header) -> None:
        self._writer.note(*header.recovered)
        if header.tool is not None:
            self._writer.open_call(header.tool, wants_json=header.is_function)
        elif header.channel is not None:
            self._writer.open_message(header.channel)
        else:
            unknown = header.unknown_channel
            self._writer.open_doubtful_message(Recovery.UNKNOWN_CHANNEL if unknown else Recovery.MISSING_CHANNEL)
        self._state = _State.BODY

    def _close_body(self, *, cut: bool) -> None:
        if rest := self._body.flush():
            self._writer.note(Recovery.INCOMPLETE_CHARACTER)
            self._writer.text(rest)
        self._writer.close(cut=cut)

    def _break_off_body(self) -> None:
        """The next message begins although this one was not ended."""
        self._writer.note(Recovery.MISSING_END)
        self._close_body(cut=False)
