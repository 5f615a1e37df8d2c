"""Who computes what in the next step.

There is no prefill phase and no decode phase. Each request has `num_computed_tokens`, which catches up with its known
tokens (and drafts); a step spends one budget of tokens on that, first on running requests, oldest first, then on
waiting ones. A prompt longer than the budget takes several steps; a cached prefix is tokens computed before the
first. If blocks run out, the newest running request gives up its own, goes back to the front of the queue and later
computes its tokens again.

    add -> waiting -> running -> finished
              ^          |
              +-preempted-
"""

import time

import msgspec

from rose.engine.decoders.base import Decoder
from rose.engine.kv_cache.manager import KVCacheManager
from rose.engine.messages import (
    MODEL_ERROR,
    EngineStats,
    FinishReason,
    RequestFailure,
    RequestOutput,
    TokenLogprobs,
)
from rose.engine.metrics import Counters
from rose.engine.queue import WaitingQueue
from rose.engine.request import Request
from rose.engine.scheduler_output import NewRequest, SampledTokens, ScheduledRequest, SchedulerOutput


class Scheduler:
    """Continuous batching over one KV cache. Call `schedule`, compute, then `update`, and so on."""

    def __init__(
        self, kv_cache: KVCacheManager, decoder: Decoder, *, max_num_seqs: int, max_num_batched_tokens: int
    ) -> None:
        self.kv_cache = kv_cache
        self._decoder = decoder
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._waiting = WaitingQueue()
        self._running: list[Request] = []  # oldest first
        self._requests: dict[int, Request] = {}  # all unfinished ones, followers included
        self._dropped: list[int] = []  # for the workers to forget, with the next step
        self._outputs: list[RequestOutput] = []  # of requests that ended outside `update`
        self._counters = Counters()

    @property
    def has_requests(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._requests)

    @property
    def has_outputs(self) -> bool:
        """Whether `take_outputs` has something to give."""
        return bool(self._outputs)

    @property
    def stats(self) -> EngineStats:
        """Gauges and counters of now."""
        return self._counters.snapshot(
            num_running=len(self._running),
            num_waiting=len(self._requests) - len(self._running),
            kv_cache_usage=self.kv_cache.usage,
        )

    def add(self, requests: list[Request]) -> None:
        """Queue the completions of one prompt; the first computes the prompt for all."""
        for request in requests:
            self._requests[request.key] = request
        leader, *leader.followers = requests
        if self.kv_cache.can_ever_hold(leader.num_prompt_tokens + 1):
            self._waiting.push(leader)
            return
        failure = RequestFailure(
            message=f"the KV cache of {self.kv_cache.capacity} blocks cannot hold the {leader.num_prompt_tokens} "
            "tokens of the prompt and one of output",
            code="context_length_exceeded",
        )
        leader.followers = []
        self._outputs += [self._finish(request, "error", failure) for request in requests]

    def unfinished(self, request_id: str | None = None, index: int | None = None) -> list[Request]:
        """The unfinished completions of one request, or one of them, or all there are."""
        return [
            request
            for request in self._requests.values()
            if (request_id is None or request.request_id == request_id) and (index is None or request.index == index)
        ]

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End an unfinished request from outside; its final output comes with the next `take_outputs`."""
        self._outputs.append(self._finish(request, reason))

    def take_outputs(self) -> list[RequestOutput]:
        """The outputs of requests that ended outside a step, once."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def schedule(self) -> SchedulerOutput:
        """Choose the next step's work and take the blocks for it. Empty if there is nothing to do."""
        output = SchedulerOutput()
        budget, preempted = self._schedule_running(output, self._max_num_batched_tokens)
        if not preempted:  # what was just given up would only be taken back
            budget = self._schedule_waiting(output, budget)
        if output.scheduled:  # an empty step is not executed, and must not lose the message
            output.dropped, self._dropped = self._dropped, []
            self._counters.count_step(self._max_num_batched_tokens - budget)
        return output

    def prepare_update(self, output: SchedulerOutput) -> None:
        """Do what of `update` needs no results, and changes nothing that anybody sees."""
        for scheduled in output.scheduled:
            num_tokens = scheduled.num_computed_tokens + scheduled.num_tokens - scheduled.num_draft_tokens
            self.kv_cache.name_blocks(self._requests[scheduled.key], num_tokens)

    def update(self, output: SchedulerOutput, sampled: dict[int, SampledTokens]) -> list[RequestOutput]:
        """Take in a step's results, by request key, and return what the frontends are to hear."""
        outputs = []
        for scheduled in output.scheduled:
            request = self._requests[scheduled.key]
            result = sampled.get(scheduled.key)
            if result is not None and result.failure is not None:
                is_poisoned = result.failure.code == MODEL_ERROR
                outputs.append(self._finish(request, "error", result.failure, forget=is_poisoned))
                continue
            num_accepted = len(result.token_ids) - 1 if result is not None and result.token_ids else 0
            request.num_computed_tokens += scheduled.num_tokens - scheduled.num_draft_tokens + num_accepted
            self.kv_cache.commit(request)
            if request.followers and request.has_computed_prompt:
                self._release_followers(request)
            if result is not None and result.prompt_logprobs and request.prompt_logprobs is not None:
                request.prompt_logprobs += result.prompt_logprobs
            if result is not None and result.token_ids:
                outputs.append(self._append(request, result))
        return outputs

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless queues, requests and blocks agree."""
        self.kv_cache.check_integrity()
        following = [follower for request in self._requests.values() for follower in request.followers]
        assert len(self._running) + len(self._waiting) + len(following) == len(self._requests), "a request is lost"
        assert not any(request in self._waiting for request in self._running), "a request runs and waits"
        if not self._requests:
            assert self.kv_cache.num_free_blocks == self.kv_cache.capacity, "a finished request holds blocks"

    def _schedule_running(self, output: SchedulerOutput, budget: int) -> tuple[int, bool]:
        """Spend the budget on running requests; returns what is left and whether one was preempted."""
        preempted, index = False, 0
        while index < len(self._running) and budget > 0:
            request = self._running[index]
            request.num_draft_tokens = self._decoder.num_draft_slots(request)
            wanted = request.num_tokens + request.num_draft_tokens - request.num_computed_tokens
            num_tokens = min(wanted, budget)
            blocks = self.kv_cache.extend(request, num_tokens)
            if blocks is None and len(self._running) == 1:  # alone: nobody can make room, so take less
                num_tokens = min(num_tokens, self.kv_cache.room(request))
                blocks = self.kv_cache.extend(request, num_tokens) if num_tokens > 0 else None
                if blocks is None:
                    self._outputs.append(self._finish(request, "error", self._cache_exhausted(request)))
                    break
            if blocks is None:
                self._preempt(self._running[-1])  # perhaps this very request, which then ends the loop
                preempted = True
                continue
            output.scheduled.append(self._scheduled(request, num_tokens, blocks))
            budget -= num_tokens
            index += 1
        return budget, preempted

    def _schedule_waiting(self, output: SchedulerOutput, budget: int) -> int:
        """Admit waiting requests, in order, as long as budget, places and blocks last; returns the budget left."""
        while self._waiting and budget > 0 and len(self._running) < self._max_num_seqs:
            request = self._waiting.peek()
            hit = self.kv_cache.find_prefix(request)
            num_tokens = min(request.num_tokens - hit.num_tokens, budget)
            if not self._running:  # nobody else will free blocks, so it must make do with what there is
                num_tokens = min(num_tokens, self.kv_cache.room(request, hit))
                if num_tokens <= 0:
                    self._outputs.append(self._finish(request, "error", self._cache_exhausted(request)))
                    continue
            if not self.kv_cache.admit(request, hit, num_tokens):
                break
            self._start(request, hit.num_tokens)
            output.new.append(self._new(request))
            output.scheduled.append(self._scheduled(request, num_tokens))
            budget -= num_tokens
        return budget

    def _start(self, request: Request, num_hit_tokens: int) -> None:
        self._waiting.remove(request)
        self._running.append(request)
        request.num_computed_tokens = num_hit_tokens
        if request.num_cached_tokens is None:
            request.queue_s = time.monotonic() - request.arrival_s
            request.num_cached_tokens = min(num_hit_tokens, request.num_prompt_tokens)
            self._counters.prefix_cache_queries += request.num_prompt_tokens
            self._counters.prefix_cache_hits += request.num_cached_tokens

    def _preempt(self, request: Request) -> None:
        self._running.remove(request)
        self.kv_cache.free(request)
        request.num_computed_tokens = 0
        request.num_draft_tokens = 0
        if request.prompt_logprobs is not None:
            request.prompt_logprobs = []  # it computes its prompt anew
        self._dropped.append(request.key)
        self._waiting.push_front(request)
        self._counters.num_preemptions += 1

    def _append(self, request: Request, result: SampledTokens) -> RequestOutput:
        reason: FinishReason | None = None
        num_taken = 0
        for token_id in result.token_ids:
            reason = request.append(token_id)
            num_taken += 1
            if reason is not None:
                break
        if reason is None and result.is_complete:
            reason = "stop"
        token_ids = result.token_ids[:num_taken]
        logprobs = None if result.logprobs is None else result.logprobs[:num_taken]
        output = (
            self._output(request, token_ids, logprobs)
            if reason is None
            else self._finish(request, reason, token_ids=token_ids, logprobs=logprobs)
        )
        told, request.prompt_logprobs = request.prompt_logprobs, None
        return output if told is None else msgspec.structs.replace(output, prompt_logprobs=told)

    def _finish(
        self,
        request: Request,
        reason: FinishReason,
        error: RequestFailure | None = None,
        *,
        token_ids: list[int] | None = None,
        logprobs: list[TokenLogprobs] | None = None,
        forget: bool = False,
    ) -> RequestOutput:
        """Remove the request from wherever it is and free its blocks. Returns its final output.

        forget: what its blocks hold is bad, and must not be found by others.
        """
        del self._requests[request.key]
        self._release_followers(request)
        if request in self._waiting:
            self._waiting.remove(request)
        elif request in self._running:
            self._running.remove(request)
            self._dropped.append(request.key)
        else:
            self._leave_leader(request)
        self.kv_cache.free(request, forget=forget)
        return self._output(request, token_ids or [], logprobs, reason, error)

    def _release_followers(self, request: Request) -> None:
        """Let the other completions of the prompt go: its blocks are cached now, or never will be by this one."""
        followers, request.followers = request.followers, []
        for follower in reversed(followers):  # they came with their leader, before whoever waits now
            self._waiting.push_front(follower)

    def _leave_leader(self, request: Request) -> None:
        for leader in self._requests.values():
            if request in leader.followers:
                leader.followers.remove(request)
                return

    def _cache_exhausted(self, request: Request) -> RequestFailure:
        return RequestFailure(
            message=f"the KV cache of {self.kv_cache.capacity} blocks cannot hold the {request.num_tokens + 1} tokens "
            "of prompt and output",
            code="kv_cache_exhausted",
        )

    def _new(self, request: Request) -> NewRequest:
        return NewRequest(
            key=request.key,
            token_ids=request.token_ids[:],
            num_prompt_tokens=request.num_prompt_tokens,
            params=request.params,
            seed=request.seed,
            stop_ids=request.stop_ids,
            block_tables=tuple(list(table) for table in self.kv_cache.block_tables(request)),
            prompt_logprobs=None if request.prompt_logprobs is None else request.params.prompt_logprobs,
        )

    @staticmethod
    def _scheduled(request: Request, num_tokens: int, new_blocks: tuple[list[int], ...] = ()) -> ScheduledRequest:
        return ScheduledRequest(
            key=request.key,
            num_computed_tokens=request.num_computed_tokens,
            num_tokens=num_tokens,
            num_draft_tokens=max(0, request.num_computed_tokens + num_tokens - request.num_tokens),
            new_blocks=new_blocks,
        )

    @staticmethod
    def _output(
        request: Request,
        token_ids: list[int],
        logprobs: list[TokenLogprobs] | None,
        reason: FinishReason | None = None,
        error: RequestFailure | None = None,
    ) -> RequestOutput:
        return RequestOutput(
            request_id=request.request_id,
            index=request.index,
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason=reason,
            num_prompt_tokens=request.num_prompt_tokens,
            num_cached_tokens=request.num_cached_tokens or 0,
            queue_s=request.queue_s,
            error=error,
        )
