"""Log-probabilities of tokens, written for JSON."""

import msgspec

from rose.chat.tokenizer import Tokenizer
from rose.server.completion import ContentLogprob

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON lacks; the figure is the one clients know from other servers."""


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the likeliest tokens at a position."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token with its log-probability. `bytes` tells what `token` cannot when a character is split."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class LogprobSpeller:
    """Spells tokens out."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def spell(self, entry: ContentLogprob) -> TokenLogprob:
        """One token, with its alternatives."""
        top = [TopLogprob(*self._token(token_id, logprob)) for token_id, logprob in entry.logprobs.top]
        return TokenLogprob(*self._token(entry.token_id, entry.logprobs.logprob), top)

    def text(self, token_id: int) -> str:
        """A token's text; the name of one that has none."""
        return self._text(token_id, self._tokenizer.token_bytes(token_id))

    def _text(self, token_id: int, raw: bytes) -> str:
        return raw.decode("utf-8", errors="replace") or self._tokenizer.decode([token_id], keep_special=True)

    def _token(self, token_id: int, logprob: float) -> tuple[str, float, list[int]]:
        raw = self._tokenizer.token_bytes(token_id)
        text = self._text(token_id, raw)
        return text, max(logprob, LEAST_LOGPROB), list(raw or text.encode())
