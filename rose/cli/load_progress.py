"""Showing how far a model has loaded: a bar on a terminal, a few log lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from rose.engine.messages import LoadProgress
from rose.log import get_logger

logger = get_logger(__name__)

_LOG_EVERY_S = 5.0


@contextmanager
def load_progress(name: str) -> Iterator[Callable[[LoadProgress], None]]:
    """A callback for the engine's progress, while the block runs."""
    if sys.stderr.isatty():
        with Progress(
            TextColumn("loading {task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        ) as bar:
            task = bar.add_task(name, total=None)
            yield lambda progress: bar.update(task, completed=progress.done_bytes, total=progress.total_bytes)
    else:
        logger.info("loading %s", name)
        yield _log_now_and_then(name)


def _log_now_and_then(name: str) -> Callable[[LoadProgress], None]:
    last = time.monotonic()

    def log(progress: LoadProgress) -> None:
        nonlocal last
        if progress.total_bytes and time.monotonic() - last >= _LOG_EVERY_S:
            last = time.monotonic()
            share = progress.done_bytes / progress.total_bytes
            logger.info("loading %s: %.0f%% of %.1f GB", name, 100 * share, progress.total_bytes / 1e9)

    return log
