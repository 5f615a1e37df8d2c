"""Pictures of results, as SVG and PNG, 1200 pixels wide. Marker, dash and hatch tell lines and bars apart in grey."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rose.bench.report import group_by
from rose.bench.results import Result
from rose.bench.tables import newest, three_digits
from rose.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH_INCHES, _HEIGHT_INCHES, _DPI = 12.0, 7.5, 100
_FONT_SIZE = 14
# Okabe and Ito's colours, which the colour-blind can tell apart, in an order that alternates dark and light.
_COLOURS = ("#000000", "#E69F00", "#0072B2", "#56B4E9", "#D55E00", "#009E73", "#CC79A7")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)))
_HATCHES = ("", "///", "...", "xx", "\\\\\\", "++", "oo")
_GREYS = ("#303030", "#e8e8e8", "#a0a0a0", "#ffffff", "#606060", "#c8c8c8", "#808080")


def write_plots(results: Iterable[Result], folder: Path) -> list[Path]:
    """Draw every picture that the results are enough for. Returns the PNG files; each has an SVG beside it.

    Only rows that count are drawn. Raises `ConfigError` if matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
    except ImportError as error:
        raise ConfigError("plots need matplotlib: pip install matplotlib") from error
    rows = [row for row in newest(results) if row.is_quotable]
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    # A salt and no date: the same results give the same file.
    with rc_context({"font.size": _FONT_SIZE, "svg.hashsalt": "rose"}):
        for name, figure in [*_decode_figures(rows), *_prefill_figures(rows)]:
            path = folder / f"{name}.png"
            figure.savefig(path, dpi=_DPI)
            figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
            paths.append(path)
    return paths


def _decode_figures(rows: Sequence[Result]) -> "list[tuple[str, Figure]]":
    figures = []
    for (device, model, context), group in group_by(rows, "decode", "context").items():
        figure = _new_figure()
        axes = figure.add_subplot()
        for index, (name, points) in enumerate(_by_configuration(group, "batch").items()):
            _draw_line(axes, index, name, points)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("decode speed of each user (tokens/s)")
        axes.set_ylabel("cost of a million output tokens (US$, decode only)")
        axes.grid(visible=True, which="both", color="#d0d0d0", linewidth=0.6)
        _plain_ticks(axes)
        axes.margins(0.12)
        axes.legend(title="numbers are batch sizes", loc="best", framealpha=0.9, handlelength=4)
        _title(figure, f"{model}: decode cost against speed, context {context:,} tokens", device, group)
        figures.append((_file_name("decode", model, context, device), figure))
    return figures


def _draw_line(axes: "Axes", index: int, name: str, points: Sequence[Result]) -> None:
    speeds = [row.metrics["tokens_per_s_per_user"] for row in points]
    costs = [row.metrics["usd_per_million_output_tokens"] for row in points]
    style = index % len(_COLOURS)
    axes.plot(
        speeds,
        costs,
        label=name,
        color=_COLOURS[style],
        linestyle=_DASHES[style],
        marker=_MARKERS[style],
        linewidth=2,
        markersize=9,
        markeredgecolor="black",
    )
    above = index % 2 == 0  # neighbours' numbers would cover each other
    for row, speed, cost in zip(points, speeds, costs, strict=True):
        axes.annotate(
            str(row.point["batch"]),
            (speed, cost),
            textcoords="offset points",
            xytext=(8, 6) if above else (-8, -6),
            horizontalalignment="left" if above else "right",
            verticalalignment="bottom" if above else "top",
            fontsize=_FONT_SIZE - 3,
        )


def _prefill_figures(rows: Sequence[Result]) -> "list[tuple[str, Figure]]":
    figures = []
    for (device, model, batch), group in group_by(rows, "prefill", "batch").items():
        figure = _new_figure()
        upper, lower = figure.subplots(2, 1, sharex=True)
        lengths = sorted({row.point["length"] for row in group})
        _draw_bars(upper, group, lengths, _Bars("ttft_s", "time to first token (s)"))
        cost = _Bars("usd_per_million_input_tokens", "million input tokens (US cents)", 100)
        _draw_bars(lower, group, lengths, cost)
        lower.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
        lower.set_xlabel("prompt length (tokens)")
        upper.legend(loc="upper left", framealpha=0.9)
        prompts = "one prompt" if batch == 1 else f"{batch} prompts together"
        _title(figure, f"{model}: prefill latency and cost, {prompts}", device, group)
        figures.append((_file_name("prefill", model, batch, device), figure))
    return figures


@dataclass(frozen=True, slots=True)
class _Bars:
    """What bars show: a metric, times `scale`."""

    metric: str
    label: str
    scale: float = 1.0


def _draw_bars(axes: "Axes", rows: Sequence[Result], lengths: Sequence[int], bars: _Bars) -> None:
    groups = _by_configuration(rows, "length")
    width = 0.8 / max(3, len(groups))
    for index, (name, points) in enumerate(groups.items()):
        style = index % len(_GREYS)
        offset = (index - (len(groups) - 1) / 2) * width
        heights = [row.metrics[bars.metric] * bars.scale for row in points]
        drawn = axes.bar(
            [lengths.index(row.point["length"]) + offset for row in points],
            heights,
            width * 0.92,
            label=name,
            color=_GREYS[style],
            hatch=_HATCHES[style],
            edgecolor="black",
        )
        size = _FONT_SIZE - 2 if len(groups) * len(lengths) <= 16 else _FONT_SIZE - 5
        axes.bar_label(drawn, [three_digits(height) for height in heights], padding=2, fontsize=size)
    axes.set_ylabel(bars.label)
    axes.margins(y=0.18)
    axes.grid(visible=True, axis="y", color="#d0d0d0", linewidth=0.6)
    axes.set_axisbelow(True)


def _by_configuration(rows: Sequence[Result], axis: str) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for row in sorted(rows, key=lambda row: row.point[axis]):
        groups.setdefault(row.configuration.name, []).append(row)
    return dict(sorted(groups.items()))


def _new_figure() -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES), layout="constrained")


def _title(figure: "Figure", title: str, device: str, rows: Sequence[Result]) -> None:
    """What is shown, and on the second line where, when and at what price."""
    prices = sorted({row.metrics["gpu_hour_usd"] for row in rows})
    dates = sorted({row.date[:10] for row in rows})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    price = " and ".join(f"${price:.2f}" for price in prices)
    figure.suptitle(f"{title}\n{device}, {price} per GPU-hour, {when}", fontsize=_FONT_SIZE + 2)


def _plain_ticks(axes: "Axes") -> None:
    """Numbers as they are read, on both logarithmic axes."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(FuncFormatter(lambda *_: ""))


def _file_name(kind: str, model: str, size: int, device: str) -> str:
    return re.sub(r"[^\w.]+", "-", f"{kind}-{model}-{size}-{device}").strip("-").lower()
