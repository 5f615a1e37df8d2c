"""What the commands share that run a model: its session, and measuring one point after the other."""

import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rose.cli.bench.flags import BenchEngineFlags, BenchOutputFlags
from rose.log import setup_logging

if TYPE_CHECKING:
    from rose.bench.points import Measured
    from rose.bench.results import Result
    from rose.bench.session import Session

# The imports inside the functions keep `rose bench --help` quick.

Engine = Annotated[BenchEngineFlags | None, Parameter(name="*")]
Output = Annotated[BenchOutputFlags | None, Parameter(name="*")]


def known_positions(model: str, engine: BenchEngineFlags | None) -> int | None:
    """How many positions the model has, as far as its files tell before it is loaded."""
    from rose.engine.worker.positions import known_max_position

    setup_logging("bench", level="WARNING")
    return known_max_position(model, (engine or BenchEngineFlags()).load_format)


def start_session(
    model: str, engine: BenchEngineFlags | None, output: BenchOutputFlags | None, **options: int
) -> "Session":
    """The model as the flags want it, to be loaded with the first point. options: of the engine."""
    from rose.bench.results import Configuration, append_results
    from rose.bench.rig import engine_config
    from rose.bench.session import RunSettings, Session

    setup_logging("bench", level="WARNING")
    engine, output = engine or BenchEngineFlags(), output or BenchOutputFlags()
    if output.out is not None:
        append_results(output.out, [])  # before the work, in case it cannot be written
    configuration = Configuration(
        model=model,
        device=engine.device,
        dtype=engine.dtype,
        load_format=engine.load_format,
        experts=engine.experts,
        dense=engine.dense,
        tensor_parallel_size=engine.tensor_parallel_size,
        data_parallel_size=engine.data_parallel_size,
        expert_parallel=engine.enable_expert_parallel,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        block_size=engine.block_size,
        label=output.label,
    )
    config = engine_config(
        configuration,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        cuda_graphs=engine.cuda_graphs,
        enable_prefix_caching=False,
        seed=output.seed,
        **options,
    )
    settings = RunSettings(
        gpu_hour_usd=output.gpu_hour_price,
        seed=output.seed,
        command=command_line(),
        revision=output.revision,
        with_ceilings=output.ceilings,
        profile_dir=output.profile_dir if output.profile else None,
        profile_steps=output.profile_steps,
    )
    return Session(configuration, config, settings)


def measure_points(points: "Iterator[Measured]", output: BenchOutputFlags | None) -> None:
    """Measure one point after the other, write each as it comes, and print the tables at the end."""
    from rose.bench.report import tables
    from rose.bench.results import append_results
    from rose.bench.tables import profile_tables

    output = output or BenchOutputFlags()
    results: list[Result] = []
    for measured in points:
        result = measured.result
        results.append(result)
        where = ", ".join(f"{name} {value}" for name, value in result.point.items())
        print(f"rose bench: {result.kind} {where}: {result.status}", file=sys.stderr)
        if output.out is not None:
            append_results(output.out, [result])
        if measured.profile is not None and measured.trace is not None:
            text = profile_tables(measured.profile)
            measured.trace.with_suffix("").with_suffix(".md").write_text(f"# {where}\n\n{text}\n", encoding="utf-8")
            print(f"## Profile: {where} ({measured.trace})\n\n{text}\n")
    print(tables(results))


def command_line() -> str:
    """What was typed."""
    return shlex.join(["rose", *sys.argv[1:]])
