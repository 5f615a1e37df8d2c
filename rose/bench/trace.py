"""Reading a Chrome trace written by the PyTorch profiler: which kernels ran, for how long, and on whose behalf.

The format is the Trace Event Format's complete events (`"ph": "X"`), times in microseconds. Kineto's categories are
`kernel`, `gpu_memcpy` and `gpu_memset` on the GPU; `cuda_runtime` and `cuda_driver` for the calls that launched them,
with the same `correlation`; `cpu_op` and `user_annotation` on the host.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LABEL_PREFIX = "rose:"
"""Begins the names of the annotations that are read as labels."""

_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCH = ("cuda_runtime", "cuda_driver")


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel of a GPU or, without one, one operator of the CPU, in that case without the operators it called.

    label: the innermost annotation around it, or around its launch; empty if there is none.
    """

    name: str
    label: str
    start_us: float
    duration_us: float


def read_trace(path: Path) -> list[Work]:
    """The work in a trace, in order of time: GPU kernels if it has any, else CPU operators."""
    events = [e for e in json.loads(path.read_text(encoding="utf-8"))["traceEvents"] if e.get("ph") == "X"]
    by_category = defaultdict(list)
    for event in events:
        by_category[event.get("cat")].append(event)
    labels = [e for e in by_category["user_annotation"] if e["name"].startswith(LABEL_PREFIX)]
    kernels = [e for category in _GPU for e in by_category[category]]
    if kernels:
        launches = [e for category in _LAUNCH for e in by_category[category]]
        work = _label_kernels(kernels, launches, labels)
    else:
        work = _label_operators(by_category["cpu_op"], labels)
    return sorted(work, key=lambda item: item.start_us)


def busy_us(work: Iterable[Work]) -> float:
    """Time in which at least one of them ran; kernels on different streams overlap."""
    busy, end = 0.0, float("-inf")
    for item in sorted(work, key=lambda item: item.start_us):
        item_end = item.start_us + item.duration_us
        busy += max(0.0, item_end - max(item.start_us, end))
        end = max(end, item_end)
    return busy


def _label_kernels(
    kernels: Sequence[Mapping[str, Any]],
    launches: Sequence[Mapping[str, Any]],
    labels: Sequence[Mapping[str, Any]],
) -> list[Work]:
    label_of_launch = {
        event["args"].get("correlation"): label for event, label, _ in _nest([*labels, *launches]) if "args" in event
    }
    return [
        Work(e["name"], label_of_launch.get(e.get("args", {}).get("correlation"), ""), e["ts"], e["dur"])
        for e in kernels
    ]


def _label_operators(operators: Sequence[Mapping[str, Any]], labels: Sequence[Mapping[str, Any]]) -> list[Work]:
    return [
        Work(event["name"], label, event["ts"], self_us)
        for event, label, self_us in _nest([*labels, *operators])
        if event["cat"] == "cpu_op"
    ]


def _nest(events: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], str, float]]:
    """Each event with the innermost label around it on its thread, and its time without the events inside it."""
    by_thread = defaultdict(list)
    for event in events:
        by_thread[event.get("tid")].append(event)
    return [nested for thread in by_thread.values() for nested in _nest_thread(thread)]


def _nest_thread(events: list[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], str, float]]:
    events.sort(key=lambda event: (event["ts"], -event["dur"]))
    labels: list[str] = []
    self_us = [float(event["dur"]) for event in events]
    around: list[int] = []  # events that are open, by index, the innermost last
    for index, event in enumerate(events):
        while around and events[around[-1]]["ts"] + events[around[-1]]["dur"] <= event["ts"]:
            around.pop()
        label = ""
        if around:
            outer = events[around[-1]]
            is_label = outer["cat"] == "user_annotation"
            label = outer["name"].removeprefix(LABEL_PREFIX) if is_label else labels[around[-1]]
            self_us[around[-1]] -= event["dur"]
        labels.append(label)
        around.append(index)
    return list(zip(events, labels, self_us, strict=True))
