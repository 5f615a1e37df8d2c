"""Measuring the points of a sweep, each in a process of its own, and taking up where an earlier run stopped."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rose.bench import guard
from rose.bench.grid import Point, Sweep
from rose.bench.machine import utc_now
from rose.bench.results import Result, append_results, read_results

Progress = Callable[[Point, Result], None]
_REASON_LINES = 3


@dataclass(frozen=True, slots=True)
class Todo:
    """A sweep's points: those with a row already, and the others."""

    done: tuple[Point, ...]
    left: tuple[Point, ...]


def plan_sweep(sweep: Sweep, *, retry_failed: bool = False) -> Todo:
    """Which points are still to be measured. retry_failed: failed and unfit ones count as such."""
    again = ("failed", "unfit") if retry_failed else ()
    rows = read_results([sweep.out]) if sweep.out.exists() else []
    status_of = {row.sweep_point: row.status for row in rows}
    done = {key for key, status in status_of.items() if status not in again}
    return Todo(
        done=tuple(point for point in sweep.points if point.key in done),
        left=tuple(point for point in sweep.points if point.key not in done),
    )


def run_sweep(sweep: Sweep, *, retry_failed: bool = False, on_result: Progress | None = None) -> None:
    """Measure what is left, and append a row for each point to the sweep's file, whatever becomes of it.

    A point that is interrupted leaves no row and is measured again by the next run.
    """
    append_results(sweep.out, [])
    for point in plan_sweep(sweep, retry_failed=retry_failed).left:
        result = measure_point(point, sweep.timeout_s)
        append_results(sweep.out, [result])
        if on_result is not None:
            on_result(point, result)


def measure_point(point: Point, timeout_s: float, python: Sequence[str] = (sys.executable,)) -> Result:
    """The row of a point, from a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "row.jsonl"
        command = [*python, "-m", "rose.cli.main", "bench", *point.arguments, "--out", str(out)]
        reason = _run(command, timeout_s)
        rows = read_results([out]) if out.exists() else []
    if rows:
        row = rows[-1]
    else:
        row = Result(
            kind=point.kind,
            status="failed",
            reason=reason or "the process ended without a row",
            configuration=point.configuration,
            point=point.coordinates,
            date=utc_now(),
        )
    return dataclasses.replace(row, command=point.command, sweep_point=point.key)


def _run(command: Sequence[str], timeout_s: float) -> str | None:
    """Run to the end; the reason why that failed, or None."""
    # The end of this pipe tells the guard that this process is gone, however it went.
    watched, held = os.pipe()
    try:
        # In a session of its own, so that the processes it may start end with it.
        process = subprocess.Popen(
            [sys.executable, "-m", guard.__name__, *command],
            stdin=watched,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        try:
            _, complaint = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return f"no result within {timeout_s:g} s"
        finally:
            _end(process)
    finally:
        os.close(watched)
        os.close(held)
    if process.returncode == 0:
        return None
    if process.returncode < 0:
        return f"ended by {signal.Signals(-process.returncode).name}"
    lines = [line for line in complaint.splitlines() if line.strip()]
    errors = [line.removeprefix("rose: error: ") for line in lines if line.startswith("rose: error: ")]
    return errors[-1] if errors else " / ".join(lines[-_REASON_LINES:])


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stderr is not None:
        process.stderr.close()
