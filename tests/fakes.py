"""Stand-ins for the engine, behind the same seam."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from rose.engine.client import RequestOutputs
from rose.engine.messages import (
    AddRequest,
    EngineReady,
    EngineStats,
    FinishReason,
    RequestFailure,
    RequestOutput,
    TokenLogprobs,
)
from rose.errors import EngineDead

# What happens next in one completion: token ids arrive together, time passes, the engine refuses, or dies.
Step = Sequence[int] | float | RequestFailure | EngineDead
Script = Callable[[AddRequest], Sequence[Step]]


def by_token(token_ids: Sequence[int]) -> list[Step]:
    """One output for each token."""
    return [[token_id] for token_id in token_ids]


@dataclass
class _Open:
    """An open request of the fake engine, with the reasons its completions were aborted for."""

    request: AddRequest
    aborted: dict[int, FinishReason]
    changed: asyncio.Event


class FakeEngine:
    """An `EngineClient` that plays a script for each request.

    It keeps the promises of the real one: stop ids, `max_tokens`, refusals as final outputs, one final output for each
    completion, aborts that take effect in the middle. submitted and aborted tell tests what it was asked.
    """

    def __init__(self, script: Script, *, max_model_len: int = 4096, step_s: float = 0.0) -> None:
        self.script = script
        self.submitted: list[AddRequest] = []
        self.aborted: list[tuple[str, int | None, FinishReason]] = []
        self.num_open = 0
        self.max_open = 0
        self.is_closed = False
        self.silence = 0.0
        self._step_s = step_s
        self._death: str | None = None
        self._open: dict[str, _Open] = {}
        self._info = EngineReady(
            max_model_len=max_model_len, vocab_size=512, block_size=16, num_blocks=64, device="fake", dtype="float32"
        )

    @property
    def info(self) -> EngineReady:
        return self._info

    @property
    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=self.num_open,
            num_waiting=3,
            kv_cache_usage=0.25,
            num_steps=7,
            steps_by_size=(4, 1, 2, *[0] * 11),
        )

    @property
    def is_alive(self) -> bool:
        return self._death is None

    def submit(self, request: AddRequest) -> RequestOutputs:
        if self._death is not None:
            raise EngineDead(self._death)
        assert request.request_id not in self._open
        self.submitted.append(request)
        self._open[request.request_id] = _Open(request, {}, asyncio.Event())
        return _Outputs(self, self._open[request.request_id])

    def abort(self, request_id: str, *, index: int | None = None, finish_reason: FinishReason = "abort") -> None:
        if request_id not in self._open:
            return
        self.aborted.append((request_id, index, finish_reason))
        opened = self._open[request_id]
        for i in range(opened.request.sampling_params.n) if index is None else (index,):
            opened.aborted.setdefault(i, finish_reason)
        opened.changed.set()

    def die(self, why: str = "the process ended with status -9") -> None:
        """Be gone, as a killed process is."""
        self._death = self._death or why
        for opened in self._open.values():
            opened.changed.set()

    def silence_s(self) -> float:
        return self.silence

    async def close(self) -> None:
        """End every open request with `abort`."""
        for request_id in list(self._open):
            self.abort(request_id)
        self.is_closed = True
        while self.num_open:
            await asyncio.sleep(0)
        self.die("the engine was closed")

    async def play(self, opened: _Open) -> AsyncIterator[RequestOutput]:
        """The outputs of one request; its completions take turns."""
        request = opened.request
        self.num_open += 1
        self.max_open = max(self.max_open, self.num_open)
        try:
            completions = [self._play_one(opened, index) for index in range(request.sampling_params.n)]
            while completions:
                for completion in list(completions):
                    try:
                        yield await anext(completion)
                    except StopAsyncIteration:
                        completions.remove(completion)
        finally:
            self.num_open -= 1
            del self._open[request.request_id]

    async def _play_one(self, opened: _Open, index: int) -> AsyncIterator[RequestOutput]:
        request, params = opened.request, opened.request.sampling_params
        num_prompt = len(request.prompt_token_ids)
        told = params.prompt_logprobs is None or index > 0

        def output(ids: Sequence[int] = (), reason: FinishReason | None = None, failure: RequestFailure | None = None):
            nonlocal told
            logprobs = [_logprobs(i, params.logprobs) for i in ids] if params.logprobs is not None else None
            prompt = None if told or not ids else request.prompt_token_ids[1:]
            told = told or bool(ids)
            return RequestOutput(
                request_id=request.request_id,
                index=index,
                token_ids=list(ids),
                logprobs=logprobs,
                prompt_logprobs=None if prompt is None else [_logprobs(i, params.prompt_logprobs or 0) for i in prompt],
                finish_reason=reason,
                num_prompt_tokens=num_prompt,
                num_cached_tokens=num_prompt // 2,
                error=failure,
            )

        max_total = self._info.max_model_len
        if num_prompt + (params.max_tokens or 1) > max_total:
            message = f"the prompt has {num_prompt} tokens; the context is {max_total}"
            failure = RequestFailure(message=message, param="max_tokens", code="context_length_exceeded")
            yield output(reason="error", failure=failure)
            return
        stop_ids = () if params.ignore_eos else params.stop_token_ids
        num_tokens_left = params.max_tokens or max_total - num_prompt
        for step in self.script(request):
            if isinstance(step, EngineDead):
                self.die(str(step))
            await self._pass_time(opened, step if isinstance(step, float) else self._step_s)
            if self._death is not None:
                raise EngineDead(self._death)
            if index in opened.aborted:
                yield output(reason=opened.aborted[index])
                return
            if isinstance(step, RequestFailure):
                yield output(reason="error", failure=step)
                return
            if isinstance(step, float):
                continue
            ids: list[int] = []
            for token_id in step:
                ids.append(token_id)
                num_tokens_left -= 1
                if token_id in stop_ids or num_tokens_left == 0:
                    yield output(ids, "stop" if token_id in stop_ids else "length")
                    return
            yield output(ids)
        yield output(reason=opened.aborted.get(index, "stop"))

    async def _pass_time(self, opened: _Open, seconds: float) -> None:
        if seconds == 0:
            await asyncio.sleep(0)
            return
        try:
            await asyncio.wait_for(opened.changed.wait(), seconds)
        except TimeoutError:
            return
        opened.changed.clear()


class _Outputs:
    """The outputs of one request: an async generator that also aborts when it is closed before it began."""

    def __init__(self, engine: FakeEngine, opened: _Open) -> None:
        self._engine = engine
        self._request_id = opened.request.request_id
        self._outputs = engine.play(opened)
        self._num_finals_due = opened.request.sampling_params.n

    def __aiter__(self) -> "_Outputs":
        return self

    async def __anext__(self) -> RequestOutput:
        output = await anext(self._outputs)
        self._num_finals_due -= output.finish_reason is not None
        return output

    async def aclose(self) -> None:
        if self._num_finals_due and self._engine.is_alive:
            # Not by `abort`: a cancelled reader has ended the script already, which is no business of a real engine's.
            self._engine.aborted.append((self._request_id, None, "abort"))
            self._num_finals_due = 0
        await self._outputs.aclose()


def _logprobs(token_id: int, num_top: int) -> TokenLogprobs:
    return TokenLogprobs(-0.25, [(token_id, -0.25), *((other, float("-inf")) for other in range(1, num_top))][:num_top])
