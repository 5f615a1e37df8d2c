"""`rose bench report`: tables and plots."""

from pathlib import Path

from rose.errors import ConfigError

# The imports inside the functions keep `rose bench --help` quick.


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
