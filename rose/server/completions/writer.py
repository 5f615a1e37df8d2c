"""Choices from deltas: what a stream sends one by one, and a whole answer joins."""

from collections.abc import Sequence

from rose.chat.detokenizer import Detokenizer
from rose.chat.events import ContentDelta, Finished
from rose.chat.tokenizer import Tokenizer
from rose.engine.messages import TokenLogprobs
from rose.server.completion import CompletionDelta
from rose.server.completions.objects import Choice, Logprobs
from rose.server.logprobs import LEAST_LOGPROB, LogprobSpeller


class ChoiceWriter:
    """Writes the deltas of one completion. echo: the prompt's ids, whose text stands before the first piece."""

    def __init__(
        self, index: int, tokenizer: Tokenizer, *, echo: Sequence[int] = (), with_logprobs: bool = False
    ) -> None:
        self._index = index
        self._echo = echo
        self._offset = 0
        self._with_logprobs = with_logprobs
        self._tokenizer = tokenizer
        self._speller = LogprobSpeller(tokenizer)
        self._detokenizer = Detokenizer(tokenizer)

    def write(self, delta: CompletionDelta, prompt_logprobs: Sequence[TokenLogprobs] = ()) -> Choice:
        """What is new. prompt_logprobs: of the echoed prompt's tokens but the first."""
        echo, self._echo = self._echo, ()
        text = self._tokenizer.decode(list(echo))
        logprobs = Logprobs([], [], [], []) if self._with_logprobs else None
        if logprobs is not None:
            for token_id, entry in zip(echo, (None, *prompt_logprobs), strict=True) if echo else ():
                self._add(logprobs, token_id, entry)
            if echo:  # what follows is decoded by itself
                self._detokenizer, self._offset = Detokenizer(self._tokenizer), len(text)
            for sampled in delta.logprobs:
                self._add(logprobs, sampled.token_id, sampled.logprobs)
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
            logprobs=logprobs,
            finish_reason=None if reason is None else "length" if reason == "length" else "stop",
        )

    def _add(self, written: Logprobs, token_id: int, entry: TokenLogprobs | None) -> None:
        token = self._speller.text(token_id)
        written.tokens.append(token)
        written.text_offset.append(self._offset)
        self._offset += len(self._detokenizer.push(token_id))
        if entry is None:
            written.token_logprobs.append(None)
            written.top_logprobs.append(None)
            return
        logprob = max(entry.logprob, LEAST_LOGPROB)
        top = {self._speller.text(i): max(value, LEAST_LOGPROB) for i, value in entry.top}
        written.token_logprobs.append(logprob)
        written.top_logprobs.append({token: logprob} | top)


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
