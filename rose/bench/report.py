"""A Markdown report of results: tables, what does not count and why, and the circumstances."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from rose.bench.results import Kind, Result
from rose.bench.tables import (
    DECODE_CELL,
    DECODE_DETAILS,
    PREFILL_CELL,
    PREFILL_DETAILS,
    ceilings_table,
    details,
    matrix,
    newest,
    serve_table,
)

Section = tuple[str, str]
"""A heading and what stands under it."""


def report(results: Iterable[Result], plots: Sequence[str] = ()) -> str:
    """The whole report. plots: file names of pictures to show, relative to the report."""
    rows = newest(results)
    sections: list[Section] = [*_prefill(rows), *_decode(rows), *_serve(rows), *_refused(rows)]
    if plots:
        sections.append(("Plots", "\n\n".join(f"![{_title_of(name)}]({name})" for name in plots)))
    sections += _circumstances(rows)
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections)
    return f"# Benchmarks\n\n{_how_to_read(rows)}\n\n{body}\n"


def tables(results: Iterable[Result]) -> str:
    """The tables alone, for the terminal."""
    rows = newest(results)
    sections = [*_prefill(rows), *_decode(rows), *_serve(rows), *_refused(rows)]
    return "\n\n".join(f"## {title}\n\n{text}" for title, text in sections)


def group_by(results: Iterable[Result], kind: Kind, axis: str) -> dict[tuple[str, str, int], list[Result]]:
    """Rows of a kind by device, model and one value of their point, in order of these.

    A row that failed before it knew its device counts to the only device that others ran on, if there is just one.
    """
    rows = [result for result in results if result.kind == kind]
    devices = {str(row.machine["device"]) for row in rows if "device" in row.machine}
    usual = devices.pop() if len(devices) == 1 else "an unknown device"
    groups: dict[tuple[str, str, int], list[Result]] = defaultdict(list)
    for row in rows:
        device = str(row.machine.get("device", usual))
        groups[device, row.configuration.model_name, row.point[axis]].append(row)
    return dict(sorted(groups.items()))


def _how_to_read(rows: Sequence[Result]) -> str:
    prices = sorted({row.metrics["gpu_hour_usd"] for row in rows if "gpu_hour_usd" in row.metrics})
    price = f" at {' and '.join(f'${price:.2f}' for price in prices)} per GPU-hour" if prices else ""
    return (
        f"Costs are for GPUs that do nothing else{price}; output tokens are charged for decoding only. Prompts are "
        "random tokens, never seen before, and the prefix cache is off. **Bold** is the best of its column. Floors: "
        "`rose.plan.roofline`."
    )


def _prefill(rows: Sequence[Result]) -> list[Section]:
    sections = []
    for (device, model, batch), group in group_by(rows, "prefill", "batch").items():
        title = f"Prefill: {model}, {_prompts(batch)}, {device}"
        lengths = matrix(group, "length", PREFILL_CELL)
        sections.append((title, f"{lengths}\n\n{details(group, ['length'], PREFILL_DETAILS)}"))
    return sections


def _decode(rows: Sequence[Result]) -> list[Section]:
    sections = []
    for (device, model, context), group in group_by(rows, "decode", "context").items():
        title = f"Decode: {model}, context {context:,}, {device}"
        batches = matrix(group, "batch", DECODE_CELL)
        sections.append((title, f"{batches}\n\n{details(group, ['batch'], DECODE_DETAILS)}"))
    return sections


def _serve(rows: Sequence[Result]) -> list[Section]:
    groups: dict[str, list[Result]] = defaultdict(list)
    for row in rows:
        if row.kind == "serve":
            groups[row.configuration.model_name].append(row)
    return [(f"Serving: {model}", serve_table(group)) for model, group in groups.items()]


def _refused(rows: Sequence[Result]) -> list[Section]:
    refused = [row for row in rows if not row.is_quotable]
    if not refused:
        return []
    lines = []
    for row in refused:
        point = ", ".join(f"{name} {value}" for name, value in row.point.items())
        what = f"{row.kind} {row.configuration.model_name} {row.configuration.name}, {point}"
        lines.append(f"- {what}: **{row.status}**: {' '.join((row.reason or 'no reason given').split())}")
    return [("Rows that do not count", "\n".join(lines))]


def _circumstances(rows: Sequence[Result]) -> list[Section]:
    sections = []
    ceilings = {str(row.machine.get("device")): row.ceilings for row in rows if row.ceilings}
    for device, measured in ceilings.items():
        sections.append((f"Ceilings measured in the same runs: {device}", ceilings_table(measured)))
    facts = dict.fromkeys(_facts(row) for row in rows if row.machine)
    commands = dict.fromkeys(row.command for row in rows if row.command)
    text = "\n".join(f"- {fact}" for fact in facts)
    if commands:
        text += "\n\n```sh\n" + "\n".join(commands) + "\n```"
    sections.append(("Circumstances", text))
    return sections


def _facts(row: Result) -> str:
    machine = row.machine
    revision = machine.get("git_revision") or "unknown revision"
    changed = ", with changes" if machine.get("git_dirty") else ""
    versions = [f"{name} {machine[name]}" for name in ("torch", "triton", "cuda", "python") if machine.get(name)]
    weights = ", random weights" if row.configuration.load_format == "dummy" else ""
    return (
        f"{row.date[:10]}: {machine.get('device')}, {', '.join(versions)}, rose {machine.get('rose')} "
        f"({revision[:12]}{changed}), seed {row.seed}{weights}"
    )


def _prompts(batch: int) -> str:
    return "one prompt" if batch == 1 else f"{batch} prompts together"


def _title_of(name: str) -> str:
    return name.rsplit("/", 1)[-1].rsplit(".", 1)[0].replace("-", " ")
