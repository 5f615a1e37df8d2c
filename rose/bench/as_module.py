"""Benchmarks that are modules of their own: `python -m rose.bench.NAME`."""

import sys
from collections.abc import Callable

from rose.errors import RoseError


def run_as_module(main: Callable[[], None]) -> None:
    """Run it. A user's mistake is one line on stderr and exit status 2, as on `rose`'s command line."""
    try:
        main()
    except RoseError as error:
        sys.stderr.write(f"rose: error: {' '.join(str(error).split())}\n")
        sys.exit(2)
