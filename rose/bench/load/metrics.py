"""What is told of a load, under the keys of `vllm bench serve`'s results."""

from collections.abc import Mapping, Sequence
from typing import Any

from rose.bench.load.client import Exchange
from rose.bench.summary import summarize
from rose.errors import ConfigError

SLO_METRICS = ("ttft", "tpot", "e2el")
_STATISTICS = ("mean", "median", "std", "p90", "p95", "p99")


def parse_slo(parts: Sequence[str]) -> dict[str, float]:
    """Read `ttft:500 tpot:50`, in milliseconds. Raises `ConfigError`."""
    slo = {}
    for part in parts:
        name, _, value = part.partition(":")
        try:
            limit_ms = float(value)
        except ValueError:
            limit_ms = 0.0
        if name not in SLO_METRICS or not limit_ms > 0:
            raise ConfigError(f"a goal must be {' or '.join(SLO_METRICS)}, a colon and milliseconds, not {part!r}")
        slo[name] = limit_ms
    return slo


def load_metrics(exchanges: Sequence[Exchange], duration_s: float, slo: Mapping[str, float]) -> dict[str, Any]:
    """Throughput, and latencies in milliseconds, None where there is nothing to measure.

    request_goodput: requests a second that met all goals; None without goals. max_output_tokens_per_s: of the best
    second, counting chunks as tokens in proportion. max_lateness_ms: how much later than planned a request was sent; if
    that is not small and no limit on open requests held it back, this machine was too slow to make the load.
    """
    complete = [x for x in exchanges if x.is_complete]
    output_tokens = sum(x.output_tokens for x in complete)
    input_tokens = sum(x.input_tokens for x in complete)
    good = sum(_meets(x, slo) for x in complete)
    metrics: dict[str, Any] = {
        "duration": duration_s,
        "completed": len(complete),
        "failed": len(exchanges) - len(complete),
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": len(complete) / duration_s,
        "request_goodput": good / duration_s if slo else None,
        "output_throughput": output_tokens / duration_s,
        "total_token_throughput": (input_tokens + output_tokens) / duration_s,
        "max_output_tokens_per_s": _best_second(complete),
        "max_concurrent_requests": _most_at_once(exchanges),
        "max_lateness_ms": 1e3 * max((x.sent_s - x.due_s for x in exchanges), default=0.0),
        "errors": sorted({x.error for x in exchanges if x.error is not None}),
    }
    for name, values in _latencies(complete).items():
        summary = summarize([1e3 * value for value in values]) if values else None
        metrics |= {
            f"{statistic}_{name}_ms": None if summary is None else getattr(summary, statistic)
            for statistic in _STATISTICS
        }
    return metrics


def _latencies(complete: Sequence[Exchange]) -> dict[str, list[float]]:
    return {
        "ttft": [x.ttft_s for x in complete],
        "tpot": [tpot_s for x in complete if (tpot_s := x.tpot_s) is not None],
        "itl": [gap for x in complete for gap in x.gaps_s],
        "e2el": [x.latency_s for x in complete],
    }


def _meets(x: Exchange, slo: Mapping[str, float]) -> bool:
    reached = {"ttft": x.ttft_s, "tpot": x.tpot_s or 0.0, "e2el": x.latency_s}
    return all(1e3 * reached[name] <= limit_ms for name, limit_ms in slo.items())


def _best_second(complete: Sequence[Exchange]) -> float:
    if not complete:
        return 0.0
    start = min(x.sent_s for x in complete)
    tokens_of_second: dict[int, float] = {}
    for x in complete:
        for arrived in x.chunk_times:
            second = int(arrived - start)
            share = x.output_tokens / len(x.chunk_times)
            tokens_of_second[second] = tokens_of_second.get(second, 0.0) + share
    return max(tokens_of_second.values())


def _most_at_once(exchanges: Sequence[Exchange]) -> int:
    """The most requests that were open at one time; failed ones count until their last sign of life."""
    changes = [(x.sent_s, 1) for x in exchanges]
    changes += [(x.chunk_times[-1] if x.chunk_times else x.sent_s, -1) for x in exchanges]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
