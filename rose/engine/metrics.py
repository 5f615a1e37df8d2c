"""What the engine counts of itself."""

from dataclasses import dataclass

from rose.engine.messages import EngineStats


@dataclass(slots=True)
class Counters:
    """Counts since the engine's start; see `EngineStats` for their meaning. Prefix counts are in tokens."""

    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_steps: int = 0
    num_scheduled_tokens: int = 0

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
        )
