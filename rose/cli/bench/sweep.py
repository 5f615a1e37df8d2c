"""`rose bench sweep`: grids of points."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rose.log import setup_logging

if TYPE_CHECKING:
    from rose.bench.grid import Point
    from rose.bench.results import Result

# The imports inside the functions keep `rose bench --help` quick.


def sweep(
    config: Path,
    /,
    *,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    retry_failed: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Measure a grid of points, each in a process of its own, and go on where an earlier run of it stopped.

    Parameters
    ----------
    config
        A TOML file; docs/benchmarks.md describes it.
    dry_run
        Print the points and what would be done, and measure nothing.
    retry_failed
        Measure points again that failed or did not fit.
    """
    from rose.bench.grid import read_sweep
    from rose.bench.sweep import plan_sweep, run_sweep

    setup_logging("bench", level="WARNING")
    grid = read_sweep(config)
    todo = plan_sweep(grid, retry_failed=retry_failed)
    print(f"{len(grid.points)} points, {len(todo.done)} done, {len(todo.left)} to do; rows in {grid.out}")
    if dry_run:
        for point in grid.points:
            print(f"{'done ' if point in todo.done else 'to do'}  {point.command}")
        return

    def tell(point: "Point", result: "Result") -> None:
        reason = f": {result.reason}" if result.reason else ""
        print(f"{result.status}  {point.command}{reason}", flush=True)

    run_sweep(grid, retry_failed=retry_failed, on_result=tell)
