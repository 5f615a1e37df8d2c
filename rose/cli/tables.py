"""Where commands print tables."""

import sys

from rich.console import Console


def table_console() -> Console:
    """Standard output, text as it is. In a terminal tables fit its width; in a pipe or a file a row stays one line."""
    return Console(width=None if sys.stdout.isatty() else 1000, emoji=False, highlight=False)
