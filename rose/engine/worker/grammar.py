"""Grammars that requests must follow: a matcher for each, and the masks of allowed tokens for each step.

Two threads do the work, for which llguidance lets go of the interpreter lock. One compiles a new request's grammar
while its prompt is computed; the other fills masks while the model runs, so that a grammar that takes long keeps nobody
waiting before its own request samples. A matcher is a function of the grammar and the output so far, so a preempted
request just gets a new one.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask, fill_next_token_bitmask_par

from rose.engine.messages import VOCABULARY_ERROR, RequestFailure
from rose.engine.scheduler_output import NewRequest, SchedulerOutput
from rose.engine.worker.grammar_tokenizer import TokenizerFile
from rose.engine.worker.token_mask import TokenMask
from rose.errors import CheckpointError
from rose.log import get_logger

logger = get_logger(__name__)

_MAX_COMPILED = 128


class Progress(Enum):
    """What a token did to its request's grammar."""

    OPEN = "open"  # more may follow
    COMPLETE = "complete"  # nothing can follow
    FAILED = "failed"  # it was not allowed, or the matcher gave up


@dataclass(frozen=True, slots=True)
class Masks:
    """What the grammars of a step allow. failures: by place in the batch, why a request cannot go on."""

    mask: TokenMask | None
    failures: Mapping[int, RequestFailure]


NO_MASKS = Masks(None, {})


class Grammars:
    """The grammars of the requests that a worker holds."""

    def __init__(self, tokenizer: TokenizerFile) -> None:
        """Nothing is read before the first grammar: llguidance holds the interpreter lock for a second meanwhile."""
        self._vocab_size = tokenizer.vocab_size
        self._compiler = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar-compiler")
        self._filler = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar-masks")
        self._file = tokenizer
        self._tokenizer: LLTokenizer | None = None
        self._refusal = ""  # why there is no tokenizer
        self._pool: LLExecutor | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._matchers: dict[int, Future[LLMatcher]] = {}

    def apply(self, output: SchedulerOutput) -> None:
        """Bring the matchers up to date with the scheduler."""
        for key in output.dropped:
            self._matchers.pop(key, None)
        for new in output.new:
            if new.params.grammar is not None:
                self._matchers[new.key] = self._compiler.submit(self._start, new.params.grammar, new)

    def begin_masks(self, keys: Sequence[int]) -> Future[Masks] | None:
        """Begin to compute what may come next for the requests of a step; None if all are free.

        keys: of the requests that sample, in the batch's order.
        """
        places = [(place, self._matchers[key]) for place, key in enumerate(keys) if key in self._matchers]
        return self._filler.submit(self._fill, places) if places else None

    def advance(self, tokens: Mapping[int, int]) -> dict[int, Progress]:
        """Take the token that each of these requests sampled, by key; those without a grammar are left out."""
        keys = [key for key in tokens if key in self._matchers]
        matchers = [self._matchers[key].result() for key in keys]
        if len(keys) > 1:
            taken = self._executor().consume_token_par(
                [(m, tokens[key]) for m, key in zip(matchers, keys, strict=True)]
            )
        else:
            taken = [matcher.consume_token(tokens[key]) for matcher, key in zip(matchers, keys, strict=True)]
        return {
            key: (Progress.COMPLETE if matcher.is_stopped() else Progress.OPEN) if was_taken else Progress.FAILED
            for key, matcher, was_taken in zip(keys, matchers, taken, strict=True)
        }

    def failure(self, key: int) -> RequestFailure:
        """Why the grammar of a request failed."""
        failure = _failure(self._matchers[key])
        assert failure is not None, "a matcher that takes no token says why"
        return failure

    # In the threads.

    def _start(self, grammar: str, new: NewRequest) -> LLMatcher:
        matcher = self._compile(grammar).deep_copy()
        if output := new.token_ids[new.num_prompt_tokens :]:
            matcher.consume_tokens(list(output))
        return matcher

    def _compile(self, grammar: str) -> LLMatcher:
        """The matcher before the first token, kept for requests with the same grammar."""
        matcher = self._compiled.pop(grammar, None)
        if matcher is None:
            limits = LLParserLimits(verbose_errors=False)  # its errors reach clients
            matcher = LLMatcher(self._load(), grammar, log_level=0, limits=limits)
        self._compiled[grammar] = matcher
        if len(self._compiled) > _MAX_COMPILED:
            self._compiled.popitem(last=False)
        return matcher

    def _load(self) -> LLTokenizer:
        """The vocabulary, or always the same error: a new one each time, as a raised one keeps what raised it alive."""
        if self._tokenizer is None and not self._refusal:
            try:
                self._tokenizer = self._file.load()
            except CheckpointError as error:
                logger.error("no request can have a grammar: %s", error)
                path = self._file.path
                self._refusal = str(error).replace(str(path), path.name)  # clients need not know where it is
        if self._tokenizer is None:
            raise CheckpointError(self._refusal)
        return self._tokenizer

    def _fill(self, places: list[tuple[int, Future[LLMatcher]]]) -> Masks:
        good = [(place, matcher.result()) for place, matcher in places if not _failure(matcher)]
        words = allocate_token_bitmask(len(good), self._vocab_size)
        if len(good) > 1:
            fill_next_token_bitmask_par(self._executor(), [(matcher, i) for i, (_, matcher) in enumerate(good)], words)
        elif good:
            fill_next_token_bitmask(good[0][1], words)
        failures = {place: failure for place, matcher in places if (failure := _failure(matcher))}
        for (place, _), row in zip(good, words, strict=True):
            if not row.any():
                failures.setdefault(place, _grammar_failure("no token of the vocabulary can follow"))
        # A matcher that gave up over this very mask has left its row without meaning.
        kept = np.array([place not in failures for place, _ in good], dtype=bool)
        rows = [place for place, _ in good if place not in failures]
        return Masks(TokenMask(rows, words[kept]) if rows else None, failures)

    def _executor(self) -> LLExecutor:
        if self._pool is None:
            self._pool = LLExecutor()
        return self._pool


def _failure(matcher: Future[LLMatcher]) -> RequestFailure | None:
    """Why a matcher cannot go on; None if it can."""
    match matcher.exception():
        case None:
            reason = matcher.result().get_error().partition("\n")[0]
            return _grammar_failure(reason) if reason else None
        case CheckpointError() as error:  # not the request's fault
            return RequestFailure(message=str(error), code=VOCABULARY_ERROR)
        case error:
            return _grammar_failure(f"{type(error).__name__}: {error}")


def _grammar_failure(reason: str) -> RequestFailure:
    return RequestFailure(message=f"the grammar failed: {reason}", code="grammar_error")
