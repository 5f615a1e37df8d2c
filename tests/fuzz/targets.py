"""What the fuzzer feeds to the parsers: bytes read as tokens, and the promises checked on them."""

from collections.abc import Sequence

from tests.chat.promises import REASONS, bytes_of_tokens, check_promises
from tests.chat.subjects import Subject

_ANY_ID = 255


class ParserTarget:
    """Checks one format's parser on the stream that some bytes stand for.

    The first byte is the engine's reason. Each of the others is a piece of the format, such as a control token or a
    word of a header; 255 and the two bytes behind it are any id, known to the tokenizer or not.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._finest = bytes_of_tokens(subject.tokenizer)

    def __call__(self, data: bytes) -> None:
        """Raises whatever the parser raises, and `AssertionError` for a broken promise."""
        reason, tokens = REASONS[data[0] % len(REASONS)] if data else "stop", self.tokens(data[1:])
        finest = [byte for token in tokens for byte in self._in_bytes(token)]
        has_text = self._subject.has_text(self._subject.tokenizer, tokens, reason)
        check_promises(self._subject.chat.parser, tokens, finest, reason, has_text=has_text)

    def tokens(self, data: bytes) -> list[int]:
        """The ids that bytes stand for."""
        ids: list[int] = []
        rest = iter(data)
        for byte in rest:
            if byte == _ANY_ID:
                ids.append(int.from_bytes(bytes([next(rest, 0), next(rest, 0)])) % (len(self._finest) + 4) - 2)
            else:
                ids += self._subject.pieces[byte % len(self._subject.pieces)]
        return ids

    def _in_bytes(self, token: int) -> Sequence[int]:
        return self._finest[token] if 0 <= token < len(self._finest) else (token,)
