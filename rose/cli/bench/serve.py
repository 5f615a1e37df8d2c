"""`rose bench serve`: load on any server."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from rose.cli.bench.checks import require_at_least, require_positive
from rose.cli.bench.flags import Numbers
from rose.cli.bench.session import command_line
from rose.cli.places import api_url
from rose.cli.serve_flags import Count
from rose.errors import ConfigError

# The imports inside the functions keep `rose bench --help` quick.


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

    require_positive(num_prompts=num_prompts, output_len=output_len, input_len=input_len)
    if max_concurrency is not None:
        require_positive(max_concurrency=max_concurrency)
    require_at_least(0, temperature=temperature)
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
    for row in measure_rates(server, shape, loads, parse_slo(slo or []), seed=seed, command=command_line()):
        rows.append(row)
        if out is not None:
            append_results(out, [row])
        if result_dir is not None:
            write_vllm_result(row, result_dir)
    print(tables(rows))


def _require_above_zero(*, timeout: float, rates: tuple[float, ...]) -> None:
    if not timeout > 0:
        raise ConfigError(f"--timeout must be above 0 seconds, got {timeout}")
    for rate in rates:
        if not rate > 0:
            raise ConfigError(f"--rates must be above 0 requests a second, got {rate}")
