"""What Ctrl-C leaves of a long piece of work."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def told_to_go_on() -> Iterator[None]:
    """For work that begins where an earlier attempt stopped: say so on Ctrl-C, which then ends the command."""
    try:
        yield
    except KeyboardInterrupt:
        print("rose: interrupted; the same command goes on where it stopped", file=sys.stderr)
        raise
