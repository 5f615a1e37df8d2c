"""`rose bench ceilings`: what this machine reaches."""

from pathlib import Path

from rose.cli.bench.session import command_line

# The imports inside the functions keep `rose bench --help` quick.


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
            command=command_line(),
            date=utc_now(),
        )
        append_results(out, [result])
