"""Choices from deltas: what a stream sends one by one, and a whole answer joins."""

from collections.abc import Iterable, Sequence

from rose.chat.detokenizer import Detokenizer
from rose.chat.events import ContentDelta, Finished
from rose.chat.tokenizer import Tokenizer
from rose.server.completion import CompletionDelta, ContentLogprob
from rose.server.completions.objects import Choice, Logprobs
from rose.server.logprobs import LEAST_LOGPROB, LogprobSpeller


class ChoiceWriter:
    """Writes the deltas of one completion. echo: the prompt's text, which stands before the first piece."""

    def __init__(self, index: int, tokenizer: Tokenizer, *, echo: str = "", with_logprobs: bool = False) -> None:
        self._index = index
        self._echo = echo
        self._offset = len(echo)
        self._with_logprobs = with_logprobs
        self._speller = LogprobSpeller(tokenizer)
        self._detokenizer = Detokenizer(tokenizer)

    def write(self, delta: CompletionDelta) -> Choice:
        """What is new."""
        text, self._echo = self._echo, ""
        reason = None
        for event in delta.events:
            match event:
                case ContentDelta(more):
                    text += more
                case Finished():
                    reason = event.reason
        return Choice(
            index=self._index,
            text=text,
            logprobs=self._logprobs(delta.logprobs) if self._with_logprobs else None,
            finish_reason=None if reason is None else "length" if reason == "length" else "stop",
        )

    def _logprobs(self, entries: Iterable[ContentLogprob]) -> Logprobs:
        written = Logprobs([], [], [], [])
        for entry in entries:
            token, logprob = self._speller.text(entry.token_id), max(entry.logprobs.logprob, LEAST_LOGPROB)
            written.tokens.append(token)
            written.token_logprobs.append(logprob)
            top = {self._speller.text(i): max(value, LEAST_LOGPROB) for i, value in entry.logprobs.top}
            written.top_logprobs.append({token: logprob} | top)
            written.text_offset.append(self._offset)
            self._offset += len(self._detokenizer.push(entry.token_id))
        return written


def join(pieces: Sequence[Choice]) -> Choice:
    """The whole that the pieces of one completion make."""
    logprobs = None
    if pieces[0].logprobs is not None:
        logprobs = Logprobs([], [], [], [])
        for piece in pieces:
            if (more := piece.logprobs) is not None:
                logprobs.tokens.extend(more.tokens)
                logprobs.token_logprobs.extend(more.token_logprobs)
                logprobs.top_logprobs.extend(more.top_logprobs)
                logprobs.text_offset.extend(more.text_offset)
    last = pieces[-1]
    text = "".join(piece.text for piece in pieces)
    return Choice(index=last.index, text=text, logprobs=logprobs, finish_reason=last.finish_reason)
