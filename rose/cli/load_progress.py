"""Showing how far a model has loaded: a bar on a terminal, a few log lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bar

from rose.log import get_logger

logger = get_logger(__name__)

_LOG_EVERY_S = 5.0

Progress = Callable[[int, int], None]
"""Called with the bytes of weights loaded, and those in all."""


@contextmanager
def load_progress(name: str, verb: str = "loading") -> Iterator[Progress]:
    """A callback that shows how far work on `name` has come, while the block runs. verb: what the work is."""
    if sys.stderr.isatty():
        with Bar(
            TextColumn(verb + " {task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        ) as bar:
            task = bar.add_task(name, total=None)
            yield lambda done_bytes, total_bytes: bar.update(task, completed=done_bytes, total=total_bytes)
    else:
        logger.info("%s %s", verb, name)
        yield _log_now_and_then(name, verb)


def _log_now_and_then(name: str, verb: str) -> Progress:
    start = last = time.monotonic()

    def log(done_bytes: int, total_bytes: int) -> None:
        nonlocal last
        if total_bytes and time.monotonic() - last >= _LOG_EVERY_S:
            last = time.monotonic()
            left_s = (last - start) * (total_bytes - done_bytes) / done_bytes if done_bytes else 0.0
            logger.info(
                "%s %s: %.0f%% of %.1f GB, %.0f s to go",
                verb,
                name,
                100 * done_bytes / total_bytes,
                total_bytes / 1e9,
                left_s,
            )

    return log
