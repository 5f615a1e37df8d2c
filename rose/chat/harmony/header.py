"""The header of a message: who speaks, on which channel, and to whom.

A header arrives as stretches of text, each opened by a control token or by the start of the message. Nothing is decided
before the whole header is in, since a recipient may come before or after the channel, and twice.
"""

import re
from dataclasses import dataclass
from enum import Enum

from rose.chat.harmony.control import CHANNELS
from rose.chat.harmony.recovery import Recovery
from rose.chat.harmony.tools import NAMESPACE, PREFIX

ASSISTANT = "assistant"

_FOREIGN_ROLES = frozenset({"user", "system", "developer", "tool"})
_NOT_TOOLS = frozenset({ASSISTANT, "all", NAMESPACE, PREFIX, *_FOREIGN_ROLES})
_CONTENT_TYPES = ("json", "code")

# Names end at a blank, at control text in ordinary characters, and where a recipient is stuck to them.
_WORD = re.compile(r"(?:(?!<\||to=)\S)+")
_RECIPIENT = re.compile(r"to=((?:(?!<\||to=)\S)*)")
_RECIPIENT_IN_TEXT = re.compile(r"(?<!\w)" + _RECIPIENT.pattern)
_CONTENT_TYPE = re.compile(r"[\w./+-]+")
_NOT_BLANK = re.compile(r"\S|$")


class Opening(Enum):
    """What stands before a header, and so who is known to speak."""

    ASSISTANT = "assistant"  # the prompt's `<|start|>assistant`, or a body of the assistant's that was broken off
    START = "start"  # `<|start|>`: the role comes first
    END = "end"  # the end of a message: `<|start|>assistant` may have been left out


class Mark(Enum):
    """What opened a stretch of header text."""

    NONE = "none"
    CHANNEL = "channel"
    CONSTRAIN = "constrain"


@dataclass(frozen=True, slots=True)
class Header:
    """A header that was read.

    foreign: another role than the assistant's begins here. channel: a known channel, or None; then `unknown_channel`
    tells a name nobody knows from no name. tool: the recipient if it is a tool, without the `functions.` prefix that
    `is_function` tells of. rest: text that is no part of a header.
    """

    foreign: bool
    channel: str | None
    unknown_channel: bool
    tool: str | None
    is_function: bool
    rest: str
    recovered: tuple[Recovery, ...]


class HeaderReader:
    """Reads a header, stretch by stretch."""

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self._foreign = False
        self._channel: str | None = None
        self._has_channel_mark = False
        self._unknown_channel = False
        self._recipients: list[str] = []
        self._rests: list[str] = []
        self._recovered: list[Recovery] = []

    def read(self, mark: Mark, text: str) -> bool:
        """Take the text between `mark` and the next control token.

        Return whether it runs into a body. Then a `<|message|>` is missing, and a `<|channel|>` that follows does not
        belong to this header any more.
        """
        self._has_channel_mark |= mark is Mark.CHANNEL
        position = self._read_role(text) if mark is Mark.NONE else 0
        rest = text[self._read_parts(mark, text, position) :]
        if not rest.strip():
            return False
        self._rests.append(rest)
        if self._recipients or self._foreign:
            return False
        if self._has_channel_mark:
            return self._channel is not None
        return self.opening is not Opening.START and not is_one_word(rest)

    def complete(self, *, has_message: bool) -> Header:
        """The header; `has_message` if `<|message|>` closed it, so that what is left over is not a body."""
        if has_message:
            self._read_leftovers()
        tool = next((recipient for recipient in self._recipients if recipient not in _NOT_TOOLS), None)
        is_function = tool is not None and tool.startswith(PREFIX)
        nameless = self._channel is None and tool is None and not self._has_channel_mark
        if has_message and nameless and self.opening is Opening.END and is_one_word("".join(self._rests)):
            self._foreign = True  # the one word in front of `<|message|>` can only be meant as a role
        if tool is not None and not is_function and Recovery.BARE_CONTENT_TYPE in self._recovered:
            self._recovered.remove(Recovery.BARE_CONTENT_TYPE)  # `to=python code` is how built-in tools are called
        if is_function and self._channel != "commentary":
            self._recovered.append(Recovery.RECIPIENT_ROUTES_CALL)
        if self.opening is Opening.END:
            self._recovered.append(Recovery.MISSING_START)
        if len(self._recipients) > 1:
            self._recovered.append(Recovery.REPEATED_RECIPIENT)
        return Header(
            foreign=self._foreign,
            channel=self._channel,
            unknown_channel=self._unknown_channel,
            tool=tool.removeprefix(PREFIX) if tool is not None else None,
            is_function=is_function,
            rest="".join(self._rests),
            recovered=tuple(self._recovered),
        )

    def _read_leftovers(self) -> None:
        """Look for recipients, and a channel that stood without its mark, in text that turned out to be no body."""
        for rest in self._rests:
            self._recipients.extend(found[1] for found in _RECIPIENT_IN_TEXT.finditer(rest) if found[1])
        if self._channel is None and not self._has_channel_mark and self._rests:
            self._channel = _known_channel(_clean(self._rests[0].split(maxsplit=1)[0]))
            if self._channel is not None:
                self._recovered.append(Recovery.NAME_CUT)

    def _read_role(self, text: str) -> int:
        """Read the role at the beginning; return where the text goes on."""
        position = _skip_blanks(text, 0)
        found = _WORD.match(text, position)
        if found is None:
            if self.opening is Opening.START:
                self._recovered.append(Recovery.MISSING_START)
            return position
        role = found[0].partition(":")[0]
        if role == ASSISTANT:
            if self.opening is Opening.ASSISTANT:
                self._recovered.append(Recovery.STRAY_TEXT)
            return found.end()
        # After `<|start|>` whatever is stuck to the role comes after it; elsewhere the word may be part of an answer.
        glued = role.removeprefix(ASSISTANT)
        if glued != role and (self.opening is Opening.START or glued in CHANNELS):
            self._recovered.append(Recovery.NAME_CUT)
            return position + len(ASSISTANT)
        if self.opening is Opening.START:
            return self._read_odd_role(_clean(role), position, found.end())
        if self.opening is Opening.END and (role in _FOREIGN_ROLES or role.startswith(PREFIX)):
            alone = found.end() == len(text.rstrip())
            self._foreign = alone or _RECIPIENT.match(text, _skip_blanks(text, found.end())) is not None
        return position

    def _read_odd_role(self, role: str, position: int, end: int) -> int:
        """A channel in place of the role is still the assistant's; any other word is another speaker."""
        if role == ASSISTANT:
            self._recovered.append(Recovery.NAME_CUT)
            return end
        if role in CHANNELS:
            self._recovered.append(Recovery.MISSING_START)
        else:
            self._foreign = role != ""
        return position

    def _read_parts(self, mark: Mark, text: str, position: int) -> int:
        """Read recipients, a channel and a content type in any order; return where text begins that is none."""
        awaits_channel = mark is not Mark.CONSTRAIN
        awaits_type = True
        while (position := _skip_blanks(text, position)) < len(text):
            if found := _RECIPIENT.match(text, position):
                self._add_recipient(found[1], text, found.end())
                position = found.end()
                continue
            word = _WORD.match(text, position)
            if word is None:  # control text in ordinary characters
                return position
            if mark is not Mark.CONSTRAIN and word[0].startswith(PREFIX):
                self._add_recipient(word[0], text, word.end())
                position = word.end()
            elif awaits_channel and mark is Mark.CHANNEL and not _clean(word[0]):
                position = word.end()  # punctuation before the name
            elif awaits_channel and self._read_channel(mark, text, word):
                awaits_channel = False
                position = word.end()
            elif awaits_type and (end := self._read_content_type(mark, text, position)) > position:
                awaits_type = False
                position = end
            else:
                return position
        return position

    def _read_channel(self, mark: Mark, text: str, word: re.Match[str]) -> bool:
        """Take `word` as the channel's name, if it can be one."""
        # Without `<|channel|>` the name counts only to the letter: the word may be the first of an answer.
        name = word[0] if mark is Mark.NONE else _clean(word[0])
        channel = _known_channel(name)
        if channel is None:
            if mark is Mark.NONE:
                return False
            self._unknown_channel = self._channel is None
            after = _skip_blanks(text, word.end())
            return after > word.end() and _RECIPIENT.match(text, after) is not None
        if word[0] != channel or text.startswith("<|", word.end()):
            self._recovered.append(Recovery.NAME_CUT)
        self._channel = channel
        self._unknown_channel = False
        return True

    def _read_content_type(self, mark: Mark, text: str, position: int) -> int:
        """Read a content type; return its end, or `position` if there is none."""
        found = _CONTENT_TYPE.match(text, position)
        if found is None:
            return position
        if mark is Mark.CONSTRAIN:
            return found.end()
        # Without its mark it must be a known one, and stand where a call or a whole header would have it.
        at_end = not text[found.end() :].strip()
        if found[0] not in _CONTENT_TYPES or not (self._recipients or at_end):
            return position
        self._recovered.append(Recovery.BARE_CONTENT_TYPE)
        return found.end()

    def _add_recipient(self, recipient: str, text: str, end: int) -> None:
        if text.startswith("<|", end):
            self._recovered.append(Recovery.NAME_CUT)
        if recipient:
            self._recipients.append(recipient)


def is_one_word(text: str) -> bool:
    """Whether `text` is a single word."""
    return len(text.split(maxsplit=2)) == 1


def may_begin_header(text: str) -> bool:
    """Whether `text` may be the first part of a word that headers use, rather than of an answer."""
    word = text.strip()
    return any(known.startswith(word) for known in (ASSISTANT, "to=", *CHANNELS, *_CONTENT_TYPES))


def _known_channel(name: str) -> str | None:
    """The channel that `name` means, maybe with a content type stuck to it."""
    for channel in CHANNELS:
        if name.startswith(channel) and name[len(channel) :] in ("", *_CONTENT_TYPES):
            return channel
    return None


def _skip_blanks(text: str, position: int) -> int:
    found = _NOT_BLANK.search(text, position)
    return found.start() if found else len(text)


def _clean(name: str) -> str:
    """The name without what stands around it, in lower case. Not a regular expression: those take quadratic time."""
    letters = [position for position, char in enumerate(name) if char.isalnum()]
    return name[letters[0] : letters[-1] + 1].lower() if letters else ""
