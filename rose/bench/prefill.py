"""Time to first token of prompts that nobody has seen before."""

from rose.bench.results import DoesNotFit
from rose.bench.rig import Rig, timed_step
from rose.bench.routing import RoutingReport, observe_routing
from rose.bench.summary import Summary, summarize
from rose.engine.core import EngineCore


class PrefillPoint:
    """`batch` prompts of `length` random tokens that arrive together. The prefix cache is off."""

    def __init__(self, rig: Rig, length: int, batch: int) -> None:
        """Raises `DoesNotFit` if the KV cache cannot hold all prompts at once."""
        self._rig = rig
        self._length = length
        self._batch = batch
        self._core = self._make_core()

    def run(self) -> float:
        """Seconds until all of a new set of prompts have their first token."""
        for _ in range(self._batch):
            self._core.add(self._rig.prompts.request(self._length, max_tokens=1, temperature=0.0))
        total_s, num_open = 0.0, self._batch
        while num_open:
            seconds, outputs = timed_step(self._core)
            total_s += seconds
            num_open -= sum(output.finish_reason is not None for output in outputs.outputs)
        return total_s

    def measure(self, *, repeats: int, warmup: int) -> Summary:
        """The times of `repeats` runs, after `warmup` that are not counted."""
        for _ in range(warmup):
            self.run()
        return summarize([self.run() for _ in range(repeats)])

    def observe_routing(self) -> RoutingReport | None:
        """The routing of one more run."""
        worker = self._rig.worker
        with worker.without_graphs(), observe_routing(worker.model) as routing:
            self.run()
        return routing.report()

    def _make_core(self) -> EngineCore:
        worker, length, batch = self._rig.worker, self._length, self._batch
        spec, info = worker.kv_cache_spec, worker.info
        needed, present = batch * spec.min_blocks(length + 1), info.num_blocks - 1
        if length + 1 > info.max_model_len or needed > present:
            raise DoesNotFit(
                f"{batch} prompt(s) of {length} tokens need {needed} KV blocks; there are {present}, and a request "
                f"may have {info.max_model_len} tokens"
            )
        config = worker.config
        return self._rig.new_core(
            max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens
        )
