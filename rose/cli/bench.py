"""`rose bench`: latency and cost of models on this machine, load on any server, and reports of both."""

import math
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import cyclopts
from cyclopts import Parameter

from rose.cli.bench_flags import BenchEngineFlags, BenchOutputFlags, ContextFillFlag, Counts, Numbers
from rose.cli.places import api_url
from rose.cli.serve_flags import Count
from rose.errors import ConfigError
from rose.log import setup_logging

if TYPE_CHECKING:
    from rose.bench.grid import Point
    from rose.bench.points import Measured
    from rose.bench.results import Result
    from rose.bench.session import Session

# The imports inside the functions keep `rose bench --help` quick.

_LEAST_STEP_TOKENS = 4096  # what an engine takes at least, if it is left the choice
_LENGTHS = (8192, 32768, 65536, 128000)
_CONTEXTS = (8192, 32768)

app = cyclopts.App(name="bench", help="Measure latency and cost; make reports.")

Engine = Annotated[BenchEngineFlags | None, Parameter(name="*")]
Output = Annotated[BenchOutputFlags | None, Parameter(name="*")]


@app.command
def prefill(
    model: str,
    /,
    *,
    lengths: Counts | None = None,
    batch: Counts = (1,),
    repeats: int = 5,
    warmup: int = 1,
    engine: Engine = None,
    output: Output = None,
) -> None:
    """Time to the first token of prompts of random tokens, with an empty cache, and its cost per million input tokens.

    Parameters
    ----------
    model
        A bundled model, a folder, or a name on the Hugging Face hub; with --load-format dummy a published name.
    lengths
        Tokens of a prompt; by default 8192, 32768, 65536 and 128000, as far as the model has positions.
    batch
        Prompts that arrive together; the time is until all have their first token.
    repeats
        Runs, of which the median is told.
    warmup
        Runs before those.
    """
    from rose.bench.lengths import choose_lengths
    from rose.bench.points import prefill_point

    _require_positive(repeats=repeats, lengths=min(lengths or _LENGTHS), batch=min(batch))
    _require_at_least(0, warmup=warmup)
    max_position = _max_position(model, engine)
    lengths = choose_lengths(
        "--lengths", lengths, _LENGTHS, max_position=max_position, needed=lambda length: length + 1
    )
    session = _start(model, engine, output, max_model_len=max(lengths) + 1, max_num_seqs=max(batch))
    _run(
        (prefill_point(session, length, size, repeats=repeats, warmup=warmup) for length in lengths for size in batch),
        output,
    )


@app.command
def decode(
    model: str,
    /,
    *,
    context: Counts | None = None,
    batches: Counts = (1, 2, 4, 8, 16, 32, 64, 128),
    steps: int = 32,
    repeats: int = 3,
    warmup: int = 8,
    temperature: float = 1.0,
    context_fill: ContextFillFlag = "random",
    engine: Engine = None,
    output: Output = None,
) -> None:
    """Time of a decode step of a full batch, and its cost per million output tokens, decoding alone.

    Parameters
    ----------
    model
        A bundled model, a folder, or a name on the Hugging Face hub; with --load-format dummy a published name.
    context
        Tokens that each request has in the cache; by default 8192 and 32768, as far as the model has positions.
    batches
        Requests that decode together.
    steps
        Steps in a run.
    repeats
        Runs; the median of their mean steps is told.
    warmup
        Steps before those.
    temperature
        0 takes the best token, which makes random weights repeat themselves and route unevenly.
    context_fill
        random puts random numbers into the cache; prefill computes prompts.
    """
    from rose.bench.decode import longest_request
    from rose.bench.lengths import choose_lengths
    from rose.bench.points import decode_point, num_extra_steps

    _require_positive(repeats=repeats, steps=steps, context=min(context or _CONTEXTS), batches=min(batches))
    _require_at_least(0, warmup=warmup, temperature=temperature)
    flags, settings = engine or BenchEngineFlags(), output or BenchOutputFlags()
    _require_positive(profile_steps=settings.profile_steps)
    num_steps = steps * repeats + warmup + num_extra_steps(settings.profile_steps)
    step_tokens = flags.max_num_batched_tokens or _LEAST_STEP_TOKENS
    max_position = _max_position(model, engine)
    context = choose_lengths(
        "--context",
        context,
        _CONTEXTS,
        max_position=max_position,
        needed=lambda length: longest_request(length, min(batches), num_steps, step_tokens),
    )
    longest = longest_request(max(context), max(batches), num_steps, step_tokens)
    session = _start(
        model,
        engine,
        output,
        max_model_len=longest if max_position is None else min(longest, max_position),
        max_num_seqs=max(batches),
    )
    _run(
        (
            decode_point(
                session,
                length,
                size,
                steps=steps,
                repeats=repeats,
                warmup=warmup,
                temperature=temperature,
                fill=context_fill,
            )
            for length in context
            for size in batches
        ),
        output,
    )


@app.command
def ceilings(*, device: str = "auto", out: Path | None = None, revision: str | None = None) -> None:
    """Measure what this machine reaches: copying memory, and multiplying matrices in each number format.

    Parameters
    ----------
    device
        auto, cpu, cuda or cuda:N.
    out
        Append the row to this file, as a JSON line.
    revision
        Source revision to record where there is no git.
    """
    from rose.bench.ceilings import measure_ceilings
    from rose.bench.machine import describe_machine, find_device, utc_now
    from rose.bench.results import Configuration, Result, append_results
    from rose.bench.tables import ceilings_table

    found = find_device(device)
    if out is not None:
        append_results(out, [])  # before the work, in case it cannot be written
    measured = measure_ceilings(found).to_dict()
    print(f"{measured['device']}\n\n{ceilings_table(measured)}")
    if out is not None:
        result = Result(
            kind="ceilings",
            configuration=Configuration(model="", device=device),
            ceilings=measured,
            machine=describe_machine(found, revision),
            command=_command(),
            date=utc_now(),
        )
        append_results(out, [result])


@app.command
def serve(
    *,
    base_url: str = "http://127.0.0.1:8000/v1",
    model: str | None = None,
    rates: Numbers = (1.0, 2.0, 4.0),
    input_len: Count = 1024,
    output_len: Count = 256,
    num_prompts: int = 100,
    endpoint: Literal["chat/completions", "completions"] = "chat/completions",
    ignore_eos: bool = True,
    temperature: float = 1.0,
    max_concurrency: int | None = None,
    slo: Annotated[list[str] | None, Parameter(name=("--slo", "--goodput"), consume_multiple=True, negative=())] = None,
    api_key: str | None = None,
    timeout: float = 600.0,
    label: str | None = None,
    seed: int = 0,
    out: Path | None = None,
    result_dir: Path | None = None,
) -> None:
    """Send an open-loop load to a running server, any that speaks OpenAI's API, and tell its latencies.

    Requests arrive as a Poisson process: when they are due, whatever became of those before.

    Parameters
    ----------
    base_url
        The server's API; without a path it is under /v1.
    model
        A name the server serves; its first one by default.
    rates
        Requests a second, one load for each; inf sends all at once.
    input_len
        Tokens of a prompt, by the server's count, about.
    output_len
        Tokens of an answer.
    num_prompts
        Requests of each load.
    endpoint
        chat/completions or completions.
    ignore_eos
        Ask for answers of exactly --output-len tokens, in the way that vLLM, SGLang and rose understand.
    temperature
        Of the requests.
    max_concurrency
        The most requests that are open at once; the load is then no longer open-loop.
    slo
        Goals in milliseconds that a good request meets, such as ttft:500 tpot:50 e2el:20000.
    api_key
        The server's key, if it wants one.
    timeout
        Seconds without a sign of life after which a request has failed.
    label
        Name of the server in reports.
    seed
        Of prompts and arrivals.
    out
        Append the rows to this file, as JSON lines.
    result_dir
        Write each result to a file of its own there too, with the keys of vllm bench serve and no others around them.
    """
    from rose.bench.load.client import RequestShape
    from rose.bench.load.metrics import parse_slo
    from rose.bench.load.run import Load
    from rose.bench.load.session import Server, measure_rates, write_vllm_result
    from rose.bench.report import tables
    from rose.bench.results import append_results

    _require_positive(num_prompts=num_prompts, output_len=output_len, input_len=input_len)
    if max_concurrency is not None:
        _require_positive(max_concurrency=max_concurrency)
    _require_at_least(0, temperature=temperature)
    _require_above_zero(timeout=timeout, rates=rates)
    shape = RequestShape(model or "", endpoint, output_len, ignore_eos, {"temperature": temperature})
    server = Server(api_url(base_url), api_key, timeout, label)
    loads = [
        Load(request_rate=rate, num_prompts=num_prompts, input_len=input_len, max_concurrency=max_concurrency)
        for rate in rates
    ]
    if out is not None:
        append_results(out, [])  # before the work, in case it cannot be written
    rows = []
    for row in measure_rates(server, shape, loads, parse_slo(slo or []), seed=seed, command=_command()):
        rows.append(row)
        if out is not None:
            append_results(out, [row])
        if result_dir is not None:
            write_vllm_result(row, result_dir)
    print(tables(rows))


@app.command
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


@app.command
def report(
    *results: Path,
    out: Path | None = None,
    plots: bool = True,
) -> None:
    """Make tables and plots of results.

    Parameters
    ----------
    results
        Files of JSON lines, as --out and sweeps write them.
    out
        A folder for report.md and the pictures; without it the report is printed, and nothing is drawn.
    plots
        Draw pictures; needs matplotlib.
    """
    from rose.bench.plots import write_plots
    from rose.bench.report import report as make_report
    from rose.bench.results import read_results

    if not results:
        raise ConfigError("name one or more files of results")
    rows = read_results(results)
    if not rows:
        raise ConfigError(f"there are no rows in {', '.join(map(str, results))}")
    if out is None:
        print(make_report(rows))
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        pictures = write_plots(rows, out) if plots else []
        (out / "report.md").write_text(make_report(rows, [path.name for path in pictures]), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the report: {error}") from error
    print(out / "report.md")


def _max_position(model: str, engine: BenchEngineFlags | None) -> int | None:
    from rose.engine.worker.positions import known_max_position

    setup_logging("bench", level="WARNING")
    return known_max_position(model, (engine or BenchEngineFlags()).load_format)


def _start(model: str, engine: BenchEngineFlags | None, output: BenchOutputFlags | None, **options: int) -> "Session":
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
        command=_command(),
        revision=output.revision,
        with_ceilings=output.ceilings,
        profile_dir=output.profile_dir if output.profile else None,
        profile_steps=output.profile_steps,
    )
    return Session(configuration, config, settings)


def _run(points: "Iterator[Measured]", output: BenchOutputFlags | None) -> None:
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


def _require_positive(**values: int) -> None:
    _require_at_least(1, **values)


def _require_at_least(least: int, **values: float) -> None:
    for name, value in values.items():
        if not least <= value < math.inf:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least {least}, got {value}")


def _require_above_zero(*, timeout: float, rates: tuple[float, ...]) -> None:
    if not timeout > 0:
        raise ConfigError(f"--timeout must be above 0 seconds, got {timeout}")
    for rate in rates:
        if not rate > 0:
            raise ConfigError(f"--rates must be above 0 requests a second, got {rate}")


def _command() -> str:
    return shlex.join(["rose", *sys.argv[1:]])
