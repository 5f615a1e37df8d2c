"""The points of a latency benchmark: each gives one row, also when it fails."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rose.bench.decode import ContextFill, DecodeMeasurement, DecodePoint
from rose.bench.prefill import PrefillPoint
from rose.bench.profile import Profile, measure_busy_s, profile_steps
from rose.bench.results import PointFailed, Result
from rose.bench.session import Session
from rose.bench.summary import Summary
from rose.plan.roofline import StepWork, decode_work, prefill_work

_BUSY_STEPS = 4


@dataclass(frozen=True, slots=True)
class Measured:
    """A row, and the profile of its point if one was asked for, with the file that holds its trace."""

    result: Result
    profile: Profile | None = None
    trace: Path | None = None


def prefill_point(session: Session, length: int, batch: int, *, repeats: int, warmup: int) -> Measured:
    """Measure the time to first token of `batch` prompts of `length` tokens; see `PrefillPoint`."""
    where: dict[str, Any] = {"length": length, "batch": batch}
    work = None
    if session.shape is not None:
        work = prefill_work(session.shape, length, batch, formats=session.formats, parallelism=session.parallelism)
    try:
        point = PrefillPoint(session.rig, length, batch)
        ttft = point.measure(repeats=repeats, warmup=warmup)
        routing = point.observe_routing()
        metrics = _prefill_metrics(session, ttft, length * batch)
        result = session.result("prefill", where, metrics, routing=routing, work=work, measured_s=ttft.median)
        return _with_profile(session, result, point.run, 1, work)
    except PointFailed as error:
        return Measured(session.failure("prefill", where, error))


def decode_point(
    session: Session,
    context: int,
    batch: int,
    *,
    steps: int,
    repeats: int,
    warmup: int,
    temperature: float,
    fill: ContextFill,
) -> Measured:
    """Measure the decode steps of `batch` requests with `context` tokens each; see `DecodePoint`."""
    where: dict[str, Any] = {"context": context, "batch": batch, "temperature": temperature, "context_fill": fill}
    num_steps = steps * repeats + warmup + num_extra_steps(session.settings.profile_steps)
    try:
        point = DecodePoint(session.rig, context, batch, num_steps=num_steps, temperature=temperature, fill=fill)
        measured = point.measure(steps, repeats=repeats, warmup=warmup)
        busy_s = measure_busy_s(point.step, session.rig.device, _BUSY_STEPS)
        routing = point.observe_routing()
        work = None
        if session.shape is not None:
            work = decode_work(
                session.shape, measured.context, batch, formats=session.formats, parallelism=session.parallelism
            )
        metrics = _decode_metrics(session, measured, batch, busy_s)
        result = session.result("decode", where, metrics, routing=routing, work=work, measured_s=measured.step_s.median)
        return _with_profile(session, result, point.step, session.settings.profile_steps, work)
    except PointFailed as error:
        return Measured(session.failure("decode", where, error))


def num_extra_steps(profile_steps: int) -> int:
    """Steps of a decode point beside those that are timed."""
    return _BUSY_STEPS + profile_steps


def _prefill_metrics(session: Session, ttft: Summary, num_tokens: int) -> dict[str, Any]:
    return {
        "ttft_s": ttft.median,
        "ttft_min_s": ttft.minimum,
        "ttft_max_s": ttft.maximum,
        "ttft_std_s": ttft.std,
        "repeats": ttft.count,
        "input_tokens_per_s": num_tokens / ttft.median,
        "usd_per_million_input_tokens": session.price.usd_per_million(num_tokens, ttft.median),
    }


def _decode_metrics(session: Session, measured: DecodeMeasurement, batch: int, busy_s: float | None) -> dict[str, Any]:
    step_s = measured.step_s.median
    return {
        "step_ms": 1e3 * step_s,
        "step_std_ms": 1e3 * measured.step_s.std,
        "step_p50_ms": 1e3 * measured.step.median,
        "step_p99_ms": 1e3 * measured.step.p99,
        "steps": measured.step.count,
        "repeats": measured.step_s.count,
        "context_mean": measured.context,
        "tokens_per_s_per_user": 1 / step_s,
        "tokens_per_s": batch / step_s,
        "usd_per_million_output_tokens": session.price.usd_per_million(batch, step_s),
        "schedule_ms": 1e3 * measured.schedule_s,
        "gpu_busy_ms": None if busy_s is None else 1e3 * busy_s,
        "host_gap_ms": None if busy_s is None else 1e3 * max(0.0, step_s - busy_s),
    }


def _with_profile(session: Session, result: Result, step: Any, num_steps: int, work: StepWork | None) -> Measured:
    folder = session.settings.profile_dir
    if folder is None:
        return Measured(result)
    size = result.point.get("length", result.point.get("context"))
    name = f"{result.kind}-{result.configuration.model_name}-{size}-{result.point['batch']}.trace.json"
    trace = folder / name
    worker = session.rig.worker
    with worker.without_graphs():  # whose kernels belong to no layer
        profile = profile_steps(
            step,
            worker.model,
            session.rig.device,
            num_steps=num_steps,
            trace=trace,
            work=work,
            rates=session.rates,
        )
    return Measured(result, profile, trace)
