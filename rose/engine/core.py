"""The engine's heart: takes messages, steps, and says what came of it. One thread, no I/O of its own."""

import itertools
import random
from collections.abc import Callable, Iterable
from typing import Protocol

from rose.engine.decoders.plain import PlainDecoder
from rose.engine.kv_cache.manager import KVCacheManager
from rose.engine.kv_cache.spec import KVCacheSpec
from rose.engine.messages import (
    Abort,
    AddRequest,
    EngineDied,
    EngineOutputs,
    EngineReady,
    FromEngine,
    RequestFailure,
    RequestOutput,
    Shutdown,
    ToEngine,
)
from rose.engine.request import RequestLimits, build_requests, num_completions
from rose.engine.scheduler import Scheduler
from rose.engine.scheduler_output import SampledTokens, SchedulerOutput
from rose.errors import RequestError
from rose.log import get_logger

logger = get_logger(__name__)

Receive = Callable[[bool], Iterable[ToEngine]]
"""Returns the messages that have arrived; if its argument is true, waits until there is one."""
Send = Callable[[FromEngine], None]


class Executor(Protocol):
    """What the core asks of the side that holds the model; `Worker` is one."""

    @property
    def kv_cache_spec(self) -> KVCacheSpec:
        """Groups of layers and the shape of a block."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The model's own ids that end a text."""
        ...

    @property
    def info(self) -> EngineReady:
        """Facts for the frontends; `num_blocks` and `max_model_len` also bind the scheduler."""
        ...

    def execute(self, output: SchedulerOutput, meanwhile: Callable[[], None]) -> list[SampledTokens]:
        """Compute one step; one entry for each request whose next token it sampled.

        meanwhile: what of the core's own work can be done while a device computes. Nothing is lost if it is not called.
        """
        ...


class EngineCore:
    """Requests in, outputs out, one step at a time."""

    def __init__(
        self,
        executor: Executor,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        enable_prefix_caching: bool = True,
        seed: int | None = None,
    ) -> None:
        self.info = executor.info
        self._executor = executor
        kv_cache = KVCacheManager(
            executor.kv_cache_spec, self.info.num_blocks, enable_prefix_caching=enable_prefix_caching
        )
        self.scheduler = Scheduler(
            kv_cache, PlainDecoder(), max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        )
        vocab_size = self.info.vocab_size
        # A small model's config may have kept the large one's ids: never sampled, and out of range for `min_tokens`.
        eos_token_ids = tuple(token_id for token_id in executor.eos_token_ids if token_id < vocab_size)
        self._limits = RequestLimits(self.info.max_model_len, vocab_size, eos_token_ids, self.info.takes_grammars)
        self._keys = itertools.count()
        self._random = random.Random(seed)
        self._refusals: list[RequestOutput] = []

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do or to say."""
        return self.scheduler.has_requests or self.scheduler.has_outputs or bool(self._refusals)

    def add(self, message: AddRequest) -> None:
        """Queue a request, or refuse it: then its final outputs come with the next step."""
        try:
            requests = build_requests(message, self._limits, self._keys, lambda: self._random.getrandbits(63))
        except RequestError as error:
            failure = RequestFailure(message=error.message, param=error.param, code=error.code)
            self._refusals += [
                RequestOutput(
                    request_id=message.request_id,
                    index=index,
                    finish_reason="error",
                    num_prompt_tokens=len(message.prompt_token_ids),
                    error=failure,
                )
                for index in range(num_completions(message.sampling_params))
            ]
        else:
            self.scheduler.add(requests)

    def abort(self, message: Abort) -> None:
        """End a request or one of its completions; unknown ones are left alone."""
        for request in self.scheduler.unfinished(message.request_id, message.index):
            self.scheduler.finish(request, message.finish_reason)

    def step(self) -> EngineOutputs:
        """Compute once, if there is anything to compute, and collect what is to be said."""
        scheduled = self.scheduler.schedule()
        outputs = []
        if scheduled.scheduled:
            results = self._executor.execute(scheduled, lambda: self.scheduler.prepare_update(scheduled))
            outputs = self.scheduler.update(scheduled, {result.key: result for result in results})
        collected = self._collect(outputs)
        if not scheduled.scheduled and not collected.outputs and self.scheduler.has_requests:
            raise RuntimeError("the scheduler finds nothing to do for unfinished requests")  # rather than spin for ever
        return collected

    def abort_all(self) -> EngineOutputs:
        """End every open request."""
        for request in self.scheduler.unfinished():
            self.scheduler.finish(request, "abort")
        return self._collect([])

    def _collect(self, outputs: list[RequestOutput]) -> EngineOutputs:
        refusals, self._refusals = self._refusals, []
        ended = self.scheduler.take_outputs()
        return EngineOutputs(outputs=[*refusals, *ended, *outputs], stats=self.scheduler.stats)


def run_core(core: EngineCore, receive: Receive, send: Send) -> None:
    """Serve until `Shutdown`. If a step fails, says `EngineDied` and returns: the state cannot be trusted then."""
    try:
        while True:
            for message in receive(not core.has_work):
                match message:
                    case AddRequest():
                        core.add(message)
                    case Abort():
                        core.abort(message)
                    case Shutdown():
                        send(core.abort_all())
                        return
            send(core.step())
    except Exception as error:
        logger.exception("the engine failed in a step and ends")
        send(EngineDied(message=f"the engine failed: {type(error).__name__}: {error}"))
