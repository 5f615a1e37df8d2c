"""Results as Markdown tables: configurations against lengths or batches, the best of each column in bold."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rose.bench.profile import Line, Profile
from rose.bench.results import Result


@dataclass(frozen=True, slots=True)
class Column:
    """A metric in a table. best: chooses the one to mark, None marks none."""

    title: str
    metric: str
    format: Callable[[float], str]
    best: Callable[[Iterable[float]], float] | None = None

    def show(self, result: Result) -> str:
        """The value as text; a dash if there is none."""
        value = self.value(result)
        return "–" if value is None else self.format(value)

    def value(self, result: Result) -> float | None:
        """The number, or None if the row has none."""
        value: float | None = result.metrics.get(self.metric)
        return None if value is None or math.isnan(value) else value


def three_digits(value: float) -> str:
    """0.121, 4.80, 23.9, 142."""
    return f"{value:.3f}" if value < 1 else f"{value:#.3g}" if value < 100 else f"{value:.0f}"


def milliseconds(value: float) -> str:
    """As many digits as are worth reading."""
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def dollars(value: float) -> str:
    """Three digits after the first that counts: $0.0123."""
    if value >= 100:
        return f"${value:,.0f}"
    return f"${value:#.3g}" if value >= 0.01 else f"${value:.5f}"


def whole(value: float) -> str:
    """With thousands apart."""
    return f"{value:,.0f}"


def times(value: float) -> str:
    """A ratio."""
    return f"{value:.2f}×"


PREFILL_CELL = (
    Column("s", "ttft_s", three_digits, min),
    Column("$/M in", "usd_per_million_input_tokens", dollars, min),
)
DECODE_CELL = (
    Column("ms/step", "step_ms", milliseconds, min),
    Column("$/M out", "usd_per_million_output_tokens", dollars, min),
)
PREFILL_DETAILS = (
    Column("TTFT s", "ttft_s", three_digits),
    Column("min", "ttft_min_s", three_digits),
    Column("max", "ttft_max_s", three_digits),
    Column("tok/s", "input_tokens_per_s", whole),
    Column("$/M in", "usd_per_million_input_tokens", dollars),
)
DECODE_DETAILS = (
    Column("ms/step", "step_ms", milliseconds),
    Column("p99", "step_p99_ms", milliseconds),
    Column("tok/s/user", "tokens_per_s_per_user", lambda value: f"{value:.1f}"),
    Column("tok/s", "tokens_per_s", whole),
    Column("$/M out", "usd_per_million_output_tokens", dollars),
    Column("host gap ms", "host_gap_ms", milliseconds),
    Column("schedule ms", "schedule_ms", milliseconds),
)
SERVE_COLUMNS = (
    Column("done", "completed", whole),
    Column("failed", "failed", whole),
    Column("req/s", "request_throughput", lambda value: f"{value:.2f}"),
    Column("out tok/s", "output_throughput", whole),
    Column("TTFT p50 ms", "median_ttft_ms", milliseconds),
    Column("p99", "p99_ttft_ms", milliseconds),
    Column("TPOT p50 ms", "median_tpot_ms", milliseconds),
    Column("p99", "p99_tpot_ms", milliseconds),
    Column("ITL p50 ms", "median_itl_ms", milliseconds),
    Column("p99", "p99_itl_ms", milliseconds),
    Column("good req/s", "request_goodput", lambda value: f"{value:.2f}"),
)


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the first column to the left, the others to the right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def newest(results: Iterable[Result]) -> list[Result]:
    """Of rows of the same kind, configuration, point and device the last one; otherwise in order."""
    found = {(r.kind, r.configuration, r.machine.get("device"), tuple(sorted(r.point.items()))): r for r in results}
    return list(found.values())


def matrix(results: Sequence[Result], axis: str, cell: Sequence[Column]) -> str:
    """Configurations against the values of `axis` in their points. Rows that do not count say so in their cell."""
    columns = sorted({result.point[axis] for result in results})
    best = {
        (value, column.metric): _best([result for result in results if result.point[axis] == value], column)
        for value in columns
        for column in cell
    }
    table: dict[str, dict[int, str]] = defaultdict(dict)
    for result in results:
        value = result.point[axis]
        table[result.configuration.name][value] = (
            " · ".join(_mark(column, result, best[value, column.metric]) for column in cell)
            if result.is_quotable
            else result.status
        )
    units = " · ".join(column.title for column in cell)
    header = [f"configuration ({units})", *(f"{value:,}" for value in columns)]
    return markdown(header, [[name, *(row.get(value, "–") for value in columns)] for name, row in table.items()])


def details(results: Sequence[Result], axes: Sequence[str], columns: Sequence[Column]) -> str:
    """A line for each row that was measured, with its share of the floor and its routing."""
    header = ["configuration", *axes, *(column.title for column in columns)]
    header += ["measured / floor", "experts used (even)", "load max/mean", "status"]
    return markdown(header, [_detail_line(result, axes, columns) for result in results if result.metrics])


def serve_table(results: Sequence[Result]) -> str:
    """A line for each rate."""
    header = ["configuration", "rate req/s", "in", "out", *(column.title for column in SERVE_COLUMNS)]
    lines = []
    for result in results:
        point = [str(result.point[name]) for name in ("request_rate", "input_len", "output_len")]
        lines.append([result.configuration.name, *point, *(column.show(result) for column in SERVE_COLUMNS)])
    return markdown(header, lines)


def ceilings_table(ceilings: dict[str, Any]) -> str:
    """Copy bandwidth and products."""
    rows = [["copy, read + write", "", f"{ceilings['copy_bytes_per_s'] / 1e12:.3f} TB/s"]]
    for gemm in ceilings["gemms"]:
        what = f"{gemm['number_format']} GEMM" + (f", {gemm['variant']}" if gemm["variant"] else "")
        rate = gemm["flops_per_s"] / 1e12
        rows.append(
            [what, f"{gemm['m']} × {gemm['n']} × {gemm['k']}", f"{rate:{'.0f' if rate >= 10 else '.3f'}} TFLOP/s"]
        )
    return markdown(["ceiling", "m × n × k", "rate"], rows)


def profile_tables(profile: Profile, num_kernels: int = 20) -> str:
    """Where a step's time went, by operation and by kernel."""
    idle_us = max(0.0, profile.wall_us - profile.busy_us)
    intro = (
        f"Of {profile.num_steps} step(s), each: {profile.wall_us / 1e3:.3f} ms while profiled, busy "
        f"{profile.busy_us / 1e3:.3f} ms, idle {idle_us / 1e3:.3f} ms. Rates are those of the operation as a whole."
    )
    header = ["count", "µs", "share", "TFLOP/s", "GB/s", "floor / time"]
    operations = markdown(["operation", *header], [[line.name, *_profile_cells(line)] for line in profile.operations])
    kernels = markdown(
        ["kernel", "operation", *header],
        [[f"`{_short(line.name)}`", line.operation, *_profile_cells(line)] for line in profile.kernels[:num_kernels]],
    )
    left_out = len(profile.kernels) - num_kernels
    rest = f"\n\nand {left_out} more kernels" if left_out > 0 else ""
    return f"{intro}\n\n{operations}\n\n{kernels}{rest}"


def _best(results: Sequence[Result], column: Column) -> float | None:
    values = [v for result in results if result.is_quotable and (v := column.value(result)) is not None]
    return column.best(values) if column.best and len(values) > 1 else None


def _mark(column: Column, result: Result, best: float | None) -> str:
    text = column.show(result)
    return f"**{text}**" if best is not None and column.value(result) == best else text


def _detail_line(result: Result, axes: Sequence[str], columns: Sequence[Column]) -> list[str]:
    line = [result.configuration.name, *(f"{result.point[axis]:,}" for axis in axes)]
    line += [column.show(result) for column in columns]
    line.append(times(result.floor["measured_over_floor"]) if result.floor else "–")
    if result.routing:
        routing = result.routing
        line.append(f"{routing['used']:.1f} ({routing['expected_used']:.1f}) of {routing['num_experts']}")
        line.append(f"{routing['max_over_mean']:.2f}")
    else:
        line += ["–", "–"]
    return [*line, result.status]


def _profile_cells(line: Line) -> list[str]:
    return [
        f"{line.count:g}",
        f"{line.time_us:.1f}",
        f"{line.share:.1%}",
        "–" if line.flops_per_s is None else f"{line.flops_per_s / 1e12:.2f}",
        "–" if line.bytes_per_s is None else f"{line.bytes_per_s / 1e9:.1f}",
        "–" if line.ceiling_share is None else f"{line.ceiling_share:.1%}",
    ]


def _cell(text: str) -> str:
    return " ".join(text.splitlines()).replace("|", "\\|")


def _short(name: str, length: int = 80) -> str:
    name = name.replace("`", "'")
    return name if len(name) <= length else name[: length - 1] + "…"
