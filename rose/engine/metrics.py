"""What the engine counts of itself."""

from bisect import bisect_left
from dataclasses import dataclass, field

from rose.engine.messages import STEP_SIZES, EngineStats


@dataclass(slots=True)
class Counters:
    """Counts since the engine's start; see `EngineStats` for their meaning. Prefix counts are in tokens."""

    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_steps: int = 0
    num_scheduled_tokens: int = 0
    steps_by_size: list[int] = field(default_factory=lambda: [0] * (len(STEP_SIZES) + 1))

    def count_step(self, num_tokens: int) -> None:
        """A step computes this many tokens."""
        self.num_steps += 1
        self.num_scheduled_tokens += num_tokens
        self.steps_by_size[bisect_left(STEP_SIZES, num_tokens)] += 1

    def snapshot(self, *, num_running: int, num_waiting: int, kv_cache_usage: float) -> EngineStats:
        """The counters, with the gauges of now."""
        return EngineStats(
            num_running=num_running,
            num_waiting=num_waiting,
            kv_cache_usage=kv_cache_usage,
            num_preemptions=self.num_preemptions,
            prefix_cache_queries=self.prefix_cache_queries,
            prefix_cache_hits=self.prefix_cache_hits,
            num_steps=self.num_steps,
            num_scheduled_tokens=self.num_scheduled_tokens,
            steps_by_size=tuple(self.steps_by_size),
        )
