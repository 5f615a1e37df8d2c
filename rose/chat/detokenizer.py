"""Tokens to text, one at a time: a character split over tokens is held back until it is whole."""

import codecs

from rose.chat.tokenizer import Tokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Turns a stream of token ids into text. The text does not depend on how the stream is cut into steps."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._decoder = _Utf8Decoder(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that became known with this token; empty while a character is incomplete."""
        return self.push_bytes(self._token_bytes(token_id))

    def push_bytes(self, data: bytes) -> str:
        """Likewise, for a caller that has looked up the token's bytes."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """End the text and be ready for another: an incomplete character comes out as one U+FFFD."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
