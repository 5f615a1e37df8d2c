"""Running steps under the PyTorch profiler, and telling where their time went."""

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from rose.bench.timing import synchronize
from rose.bench.trace import LABEL_PREFIX, Work, busy_us, read_trace
from rose.layers.attention import Attention
from rose.plan.machine import MachineRates
from rose.plan.roofline import OpWork, StepWork

# Which operation of `rose.plan.roofline` a module's kernels do; other modules keep their own names.
_OPERATION_OF_LABEL = {
    "attn.qkv": "projections",
    "attn.out": "projections",
    "attn.attention full": "full attention",
    "attn.attention window": "window attention",
    "mlp.router": "router",
    "mlp.gate_up": "experts",
    "mlp.down": "experts",
    "mlp": "experts",  # with what comes between their products: a fused op cannot be taken apart
    "attn_norm": "norms and residuals",
    "mlp_norm": "norms and residuals",
    "norm": "norms and residuals",
    "block": "norms and residuals",
    "": "sampling and the rest",
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a profile's tables, for one step.

    time_us, count: of a step, on average. share: of all kernels' time. flops_per_s, bytes_per_s: what the operation
    must do by the roofline, over the time that its kernels took together; None where the arithmetic does not count it.
    ceiling_share: the operation's floor over that time.
    """

    name: str
    operation: str
    count: float
    time_us: float
    share: float
    flops_per_s: float | None
    bytes_per_s: float | None
    ceiling_share: float | None


@dataclass(frozen=True, slots=True)
class Profile:
    """Of `num_steps` steps. wall_us: a step's time, while profiled. busy_us: of it, when the device ran something."""

    num_steps: int
    wall_us: float
    busy_us: float
    operations: tuple[Line, ...]
    kernels: tuple[Line, ...]


def measure_busy_s(step: Callable[[], object], device: torch.device, num_steps: int) -> float | None:
    """Seconds of a step in which the GPU runs a kernel or a copy; None without a GPU or if it cannot be traced."""
    if device.type != "cuda":
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        _run(step, device, num_steps, path, [ProfilerActivity.CUDA])
        work = read_trace(path)
    return busy_us(work) / num_steps / 1e6 if work else None


def profile_steps(
    step: Callable[[], object],
    model: object,
    device: torch.device,
    *,
    num_steps: int,
    trace: Path,
    work: StepWork | None,
    rates: MachineRates | None,
) -> Profile:
    """Profile `num_steps` calls of `step` and write their Chrome trace to `trace`.

    work: what one step must do; rates: the machine's. Either may be unknown; then there are no rates in the tables.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    trace.parent.mkdir(parents=True, exist_ok=True)
    with _labelled(model):
        wall_s = _run(step, device, num_steps, trace, activities)
    return make_profile(read_trace(trace), num_steps=num_steps, wall_us=wall_s * 1e6, work=work, rates=rates)


def make_profile(
    items: list[Work], *, num_steps: int, wall_us: float, work: StepWork | None, rates: MachineRates | None
) -> Profile:
    """The tables, from what ran in `num_steps` steps that took `wall_us` in all."""
    operations = {op.name: op for op in work.ops} if work else {}
    by_operation: dict[str, list[Work]] = {}
    by_kernel: dict[tuple[str, str], list[Work]] = {}
    for item in items:
        operation = _OPERATION_OF_LABEL.get(item.label, item.label)
        by_operation.setdefault(operation, []).append(item)
        by_kernel.setdefault((item.name, operation), []).append(item)
    total_us = sum(item.duration_us for item in items) or 1.0
    time_of = {name: sum(item.duration_us for item in group) / num_steps for name, group in by_operation.items()}

    def line(name: str, operation: str, group: list[Work]) -> Line:
        time_us = sum(item.duration_us for item in group)
        op = operations.get(operation)
        achieved = _achieved(op, rates, time_of[operation]) if op else (None, None, None)
        return Line(name, operation, len(group) / num_steps, time_us / num_steps, time_us / total_us, *achieved)

    lines = [line(name, name, group) for name, group in by_operation.items()]
    kernels = [line(name, operation, group) for (name, operation), group in by_kernel.items()]
    return Profile(
        num_steps=num_steps,
        wall_us=wall_us / num_steps,
        busy_us=busy_us(items) / num_steps,
        operations=tuple(sorted(lines, key=lambda entry: -entry.time_us)),
        kernels=tuple(sorted(kernels, key=lambda entry: -entry.time_us)),
    )


def _achieved(op: OpWork, rates: MachineRates | None, time_us: float) -> tuple[float, float, float | None]:
    seconds = max(time_us, 1e-9) / 1e6
    return op.flops / seconds, op.num_bytes / seconds, None if rates is None else op.floor_s(rates) / seconds


def _run(
    step: Callable[[], object], device: torch.device, num_steps: int, path: Path, activities: list[ProfilerActivity]
) -> float:
    synchronize(device)
    with profile(activities=activities, acc_events=True) as profiler:
        begin = time.perf_counter()
        for _ in range(num_steps):
            step()
        synchronize(device)
        seconds = time.perf_counter() - begin
    profiler.export_chrome_trace(str(path))
    return seconds


@contextmanager
def _labelled(model: object) -> Iterator[None]:
    """While the block runs, annotate the trace with the modules that are at work, layers taken together."""
    handles: list[Any] = []
    if isinstance(model, nn.Module):
        for name, module in model.named_modules():
            if name:
                label = _Label(_label_of(name, module))
                handles.append(module.register_forward_pre_hook(label.open))
                handles.append(module.register_forward_hook(label.close))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _label_of(name: str, module: nn.Module) -> str:
    label = re.sub(r"^blocks\.\d+\.?", "", name) or "block"
    if isinstance(module, Attention):
        label += " full" if module.spec.sliding_window is None else " window"
    return label


class _Label:
    """A pair of hooks that open and close an annotation."""

    def __init__(self, label: str) -> None:
        self._name = LABEL_PREFIX + label
        self._open: list[record_function] = []

    def open(self, *_: object) -> None:
        """Before the module runs."""
        annotation = record_function(self._name)
        annotation.__enter__()
        self._open.append(annotation)

    def close(self, *_: object) -> None:
        """After it ran."""
        self._open.pop().__exit__(None, None, None)
