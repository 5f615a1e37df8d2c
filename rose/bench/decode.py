"""Decode steps of a full batch at a given context length."""

from dataclasses import dataclass
from typing import Literal

from rose.bench.executor import fill_blocks
from rose.bench.results import DoesNotFit, PointFailed
from rose.bench.rig import Rig, timed_step
from rose.bench.routing import RoutingReport, observe_routing
from rose.bench.summary import Summary, mean, summarize
from rose.bench.timing import synchronize

ContextFill = Literal["random", "prefill"]
"""How the cache gets its context: random numbers in the blocks, or prompts that are really computed."""

_ROUTING_STEPS = 4
_MOST_FILL_TOKENS = 1 << 17


@dataclass(frozen=True, slots=True)
class DecodeMeasurement:
    """Of several runs of steps.

    step_s: mean time of a step in each run. step: the time of every step. schedule_s: mean time of a step outside the
    worker. context: mean tokens in a request's cache.
    """

    step_s: Summary
    step: Summary
    schedule_s: float
    context: float


class DecodePoint:
    """A batch of requests in the middle of their answers. Make it, then `measure`, then `observe_routing`."""

    def __init__(
        self, rig: Rig, context: int, batch: int, *, num_steps: int, temperature: float, fill: ContextFill
    ) -> None:
        """Bring `batch` requests to `context` tokens or a few more; they can then go on for `num_steps` steps.

        Those of `observe_routing` come on top. Raises `DoesNotFit` if the KV cache cannot hold all requests at once,
        `PointFailed`.
        """
        self._rig = rig
        self._batch = batch
        budget = self._check_room(context, num_steps, fill)
        self._core = rig.new_core(max_num_seqs=batch, max_num_batched_tokens=budget)
        rig.executor.computes = fill == "prefill"
        try:
            self._admit(context, temperature)
        finally:
            rig.executor.computes = True
        fill_blocks(rig.worker, rig.executor.pending_blocks, rig.prompts.random.getrandbits(62))

    def step(self) -> float:
        """One step of the whole batch, in seconds."""
        seconds, outputs = timed_step(self._core)
        if len(outputs.outputs) != self._batch:
            raise PointFailed(f"a step gave tokens to {len(outputs.outputs)} of {self._batch} requests")
        return seconds

    def measure(self, num_steps: int, *, repeats: int, warmup: int) -> DecodeMeasurement:
        """Time `repeats` runs of `num_steps` steps, after `warmup` steps more."""
        for _ in range(warmup):
            self.step()
        executor = self._rig.executor
        synchronize(self._rig.device)
        before_s = executor.execute_s
        seconds, contexts = [], []
        for _ in range(repeats * num_steps):
            seconds.append(self.step())
            contexts.append(mean([s.num_computed_tokens + s.num_tokens for s in executor.scheduled]))
        execute_s = executor.execute_s - before_s
        runs = [mean(seconds[start : start + num_steps]) for start in range(0, len(seconds), num_steps)]
        return DecodeMeasurement(
            step_s=summarize(runs),
            step=summarize(seconds),
            schedule_s=(sum(seconds) - execute_s) / len(seconds),
            context=mean(contexts),
        )

    def observe_routing(self) -> RoutingReport | None:
        """The routing of a few more steps."""
        worker = self._rig.worker
        with worker.without_graphs(), observe_routing(worker.model) as routing:
            for _ in range(_ROUTING_STEPS):
                self.step()
        return routing.report()

    def _check_room(self, context: int, num_steps: int, fill: ContextFill) -> int:
        """How many tokens to admit in a step, such that the cache holds every request to its end."""
        worker, batch = self._rig.worker, self._batch
        spec, info = worker.kv_cache_spec, worker.info
        if batch > worker.config.max_num_seqs:
            raise DoesNotFit(f"a batch of {batch}; the engine runs {worker.config.max_num_seqs} requests")
        num_tokens = longest_request(context, batch, num_steps, worker.config.max_num_batched_tokens)
        if num_tokens > info.max_model_len:
            raise DoesNotFit(f"{num_tokens} tokens a request; the engine has room for {info.max_model_len}")
        needed, present = batch * spec.min_blocks(num_tokens), info.num_blocks - 1
        # While a chunk of a prompt is computed, its tokens hold blocks of every group.
        spare_tokens = (present - needed) // len(spec.groups) * spec.block_size - batch
        if spare_tokens < spec.block_size:
            block_gib = spec.block_bytes(worker.model.dtype.itemsize) / 2**30
            raise DoesNotFit(
                f"{batch} requests of {num_tokens} tokens need {needed * block_gib:.1f} GiB of KV cache and some to "
                f"compute prompts in; there are {present * block_gib:.1f} GiB"
            )
        if fill == "prefill":
            return worker.config.max_num_batched_tokens
        return batch + min(spare_tokens, batch * context, _MOST_FILL_TOKENS)

    def _admit(self, context: int, temperature: float) -> None:
        for _ in range(self._batch):
            self._core.add(self._rig.prompts.request(context, max_tokens=None, temperature=temperature))
        started: set[str] = set()
        while len(started) < self._batch:
            _, outputs = timed_step(self._core)
            started.update(output.request_id for output in outputs.outputs)
            if any(output.finish_reason is not None for output in outputs.outputs):
                raise DoesNotFit(f"the KV cache never held all {self._batch} requests at once")


def longest_request(context: int, batch: int, num_steps: int, max_num_batched_tokens: int) -> int:
    """Tokens that a request may come to have: those admitted first decode while the last are still admitted."""
    num_steps += _ROUTING_STEPS
    num_admission_steps = -(-batch * context // max(1, max_num_batched_tokens - batch)) + 1
    return context + num_admission_steps + num_steps + 1
