"""What `/metrics` shows, under the names that dashboards and routers for this kind of server expect.

The series under `rose:` that vLLM has too are shown a second time under `vllm:`, so that boards and endpoint pickers
made for it work unchanged.

One process keeps its counts in a registry of its own. Several keep them in files, by prometheus_client's own means,
which is chosen by an environment variable at its import; each then shows the sums over all, those that ended included.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from rose.chat.events import Finished
from rose.engine.client import EngineClient
from rose.engine.messages import STEP_SIZES, EngineStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ENGINE_LABEL = "0"
MAX_FIELD_LABELS = 64

_LABELS = ("model_name", "engine")
_TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_TIME_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_TIME_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_LENGTH_BUCKETS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))


class Metrics:
    """The server's series. The engine's own are read from `engine.stats` when somebody asks.

    folder: where this process and its siblings keep their counts; None for a process without siblings.
    """

    def __init__(
        self, engine: EngineClient, model_name: str, *, vllm_names: bool = True, folder: str | None = None
    ) -> None:
        self._vllm_names = vllm_names
        self._model_name = model_name
        self._shared = CollectorRegistry()
        self._own = CollectorRegistry()
        self._field_labels: set[str] = set()
        self._engine = CollectorRegistry()
        self._engine.register(_EngineCollector(engine, model_name))
        self._folder = folder

        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of the requests submitted.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self._request_success = Counter(
            "rose:request_success",
            "Completions that ended, by reason.",
            (*_LABELS, "finished_reason"),
            registry=self._shared,
        )
        self.ttft = self._histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first token.", _TTFT_BUCKETS
        )
        self.itl = self._histogram(
            "inter_token_latency_seconds", "Between two outputs of a completion.", _TOKEN_TIME_BUCKETS
        )
        self.tpot = self._histogram(
            "request_time_per_output_token_seconds",
            "Mean time of a completion's tokens after its first.",
            _TOKEN_TIME_BUCKETS,
        )
        self.e2e = self._histogram(
            "e2e_request_latency_seconds", "From a request's arrival to a completion's end.", _REQUEST_TIME_BUCKETS
        )
        self.queue_time = self._histogram(
            "request_queue_time_seconds", "In the engine's queue, before the first step.", _REQUEST_TIME_BUCKETS
        )
        self.prefill_time = self._histogram(
            "request_prefill_time_seconds", "From the queue's end to the first token.", _REQUEST_TIME_BUCKETS
        )
        self.decode_time = self._histogram(
            "request_decode_time_seconds", "From a completion's first token to its last.", _REQUEST_TIME_BUCKETS
        )
        self.inference_time = self._histogram(
            "request_inference_time_seconds",
            "From the queue's end to a completion's last token.",
            _REQUEST_TIME_BUCKETS,
        )
        self.num_prompt_tokens = self._histogram(
            "request_prompt_tokens", "Prompt tokens of a request.", _LENGTH_BUCKETS
        )
        self.num_generation_tokens = self._histogram(
            "request_generation_tokens", "Tokens of a completion.", _LENGTH_BUCKETS
        )
        self._recovered = Counter(
            "rose:harmony_recovered",
            "Completions in which the parser had to apply a recovery rule, by rule.",
            (*_LABELS, "rule"),
            registry=self._own,
        )
        self._ignored_fields = Counter(
            "rose:ignored_fields",
            "Request fields that nobody knows, by name.",
            ("model_name", "field"),
            registry=self._own,
        )

    def _counter(self, name: str, text: str) -> Counter:
        series = Counter(f"rose:{name}", text, _LABELS, registry=self._shared)
        return series.labels(self._model_name, ENGINE_LABEL)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        series = Histogram(f"rose:{name}", text, _LABELS, registry=self._shared, buckets=buckets)
        return series.labels(self._model_name, ENGINE_LABEL)

    def begin_request(self, num_completions: int) -> "RequestRecord":
        """Start the clock of a request that has just arrived."""
        return RequestRecord(self, num_completions)

    def count_finished(self, reason: str, recovered: Iterable[str] = ()) -> None:
        """Count a completion's end, and the recovery rules that its text needed."""
        self._request_success.labels(self._model_name, ENGINE_LABEL, reason).inc()
        for rule in recovered:
            self._recovered.labels(self._model_name, ENGINE_LABEL, rule).inc()

    def count_ignored_fields(self, names: Iterable[str]) -> None:
        """Count fields that were ignored. Names beyond the first few dozen different ones share one label."""
        for name in (name[:64] for name in names):
            if name not in self._field_labels and len(self._field_labels) >= MAX_FIELD_LABELS:
                name = "_other"
            self._field_labels.add(name)
            self._ignored_fields.labels(self._model_name, name).inc()

    def exposition(self) -> bytes:
        """The whole page in Prometheus's text format."""
        shared, own = (_text(registry) for registry in self._counts())
        shared = _text(self._engine) + shared
        mirrored = re.sub(rb"(?m)^((?:# (?:HELP|TYPE) )?)rose:", rb"\1vllm:", shared) if self._vllm_names else b""
        return shared + own + mirrored

    def _counts(self) -> tuple[CollectorRegistry, CollectorRegistry]:
        """What the servers count, apart from each other: what is shown a second time, and what is not."""
        if self._folder is None:
            return self._shared, self._own
        folder = self._folder
        own_names = {metric.name for metric in self._own.collect()}

        def sums_where(wanted: Callable[[str], bool]) -> CollectorRegistry:
            registry = CollectorRegistry()
            registry.register(_Sums(folder, wanted))
            return registry

        return sums_where(lambda name: name not in own_names), sums_where(lambda name: name in own_names)


class RequestRecord:
    """The times and counts of one request, put into the series as they become known."""

    def __init__(self, metrics: Metrics, num_completions: int) -> None:
        self._metrics = metrics
        self._arrival = time.perf_counter()
        self._submitted = self._arrival
        self._completions = [_CompletionRecord() for _ in range(num_completions)]

    def on_submit(self, num_prompt_tokens: int) -> None:
        """The request is on its way to the engine."""
        self._submitted = time.perf_counter()
        self._metrics.prompt_tokens.inc(num_prompt_tokens)
        self._metrics.num_prompt_tokens.observe(num_prompt_tokens)

    def on_output(self, index: int, num_tokens: int, queue_s: float) -> None:
        """The engine gave a completion more tokens."""
        if not num_tokens:
            return
        completion, now, metrics = self._completions[index], time.perf_counter(), self._metrics
        if completion.num_tokens == 0:
            completion.first = now
            completion.started = self._submitted + queue_s
            metrics.ttft.observe(now - self._arrival)
            metrics.queue_time.observe(queue_s)
            metrics.prefill_time.observe(max(0.0, now - completion.started))
        else:
            metrics.itl.observe(now - completion.last)
        completion.last = now
        completion.num_tokens += num_tokens
        metrics.generation_tokens.inc(num_tokens)

    def on_finish(self, index: int, finished: Finished) -> None:
        """A completion came to its end."""
        self._finish(self._completions[index], "stop" if finished.reason == "tool_calls" else finished.reason)
        self._metrics.count_finished(self._completions[index].reason or "", finished.recovered)

    def on_end(self, reason: Literal["abort", "error"]) -> None:
        """The request ended; what was still unfinished of it ended for `reason`."""
        for completion in self._completions:
            if completion.reason is None:
                self._finish(completion, reason)
                self._metrics.count_finished(reason)

    def _finish(self, completion: "_CompletionRecord", reason: str) -> None:
        completion.reason = reason
        metrics = self._metrics
        metrics.e2e.observe(time.perf_counter() - self._arrival)
        metrics.num_generation_tokens.observe(completion.num_tokens)
        if completion.num_tokens:
            metrics.decode_time.observe(completion.last - completion.first)
            metrics.inference_time.observe(max(0.0, completion.last - completion.started))
        if completion.num_tokens > 1:
            metrics.tpot.observe((completion.last - completion.first) / (completion.num_tokens - 1))


class _CompletionRecord:
    __slots__ = ("first", "last", "num_tokens", "reason", "started")

    def __init__(self) -> None:
        self.started = 0.0
        self.first = 0.0
        self.last = 0.0
        self.num_tokens = 0
        self.reason: str | None = None


class _Sums(Collector):
    """The sums over all processes that count in a folder, of the series that are wanted."""

    def __init__(self, folder: str, wanted: Callable[[str], bool]) -> None:
        self._all = MultiProcessCollector(None, path=folder)  # type: ignore[no-untyped-call]
        self._wanted = wanted

    def collect(self) -> Iterator[Metric]:
        merged: Iterable[Metric] = self._all.collect()  # type: ignore[no-untyped-call]
        return (metric for metric in merged if self._wanted(metric.name))


class _EngineCollector(Collector):
    """Shows `engine.stats` and `engine.info` as they are at the moment of the scrape."""

    def __init__(self, engine: EngineClient, model_name: str) -> None:
        self._engine = engine
        self._labels = (model_name, ENGINE_LABEL)

    def collect(self) -> Iterator[Metric]:
        stats, info = self._engine.stats, self._engine.info
        for name, text, value in (
            ("num_requests_running", "Requests in the running batch.", stats.num_running),
            ("num_requests_waiting", "Requests waiting for room in the batch.", stats.num_waiting),
            ("kv_cache_usage_perc", "Share of the KV cache's blocks in use, 0 to 1.", stats.kv_cache_usage),
        ):
            gauge = GaugeMetricFamily(f"rose:{name}", text, labels=_LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        for name, text, value in (
            ("num_preemptions", "Requests put back for want of KV blocks.", stats.num_preemptions),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_cache_queries),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.prefix_cache_hits),
            ("engine_steps", "Steps of the engine.", stats.num_steps),
            (
                "engine_scheduled_tokens",
                "Tokens computed by the engine, prompt and output.",
                stats.num_scheduled_tokens,
            ),
        ):
            counter = CounterMetricFamily(f"rose:{name}", text, labels=_LABELS)
            counter.add_metric(self._labels, value)
            yield counter
        yield _step_sizes(stats, self._labels)
        config = GaugeMetricFamily(
            "rose:cache_config_info",
            "The KV cache's shape, in labels.",
            labels=(*_LABELS, "block_size", "num_gpu_blocks"),
        )
        config.add_metric((*self._labels, str(info.block_size), str(info.num_blocks)), 1)
        yield config


def _step_sizes(stats: EngineStats, labels: tuple[str, str]) -> Metric:
    sizes = HistogramMetricFamily("rose:iteration_tokens_total", "Tokens that a step computes.", labels=_LABELS)
    bounds = (*map(str, STEP_SIZES), "+Inf")
    totals = accumulate(stats.steps_by_size or (0,) * len(bounds))
    sizes.add_metric(labels, list(zip(bounds, totals, strict=True)), sum_value=stats.num_scheduled_tokens)
    return sizes


def _text(registry: CollectorRegistry) -> bytes:
    """The registry's series, without the `_created` ones, which double the page and which nobody reads."""
    return re.sub(rb"(?m)^(?:# (?:HELP|TYPE) )?\S+_created[ {].*\n", b"", generate_latest(registry))
