"""Showing how far a model has loaded: a bar on a terminal, a few log lines elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from rose.engine.messages import LoadProgress
from rose.log import get_logger

logger = get_logger(__name__)

_LOGGED_SHARES = (0.25, 0.5, 0.75, 1.0)


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
        yield _log_at_quarters(name)


def _log_at_quarters(name: str) -> Callable[[LoadProgress], None]:
    shares = list(_LOGGED_SHARES)

    def log(progress: LoadProgress) -> None:
        passed = [share for share in shares if progress.done_bytes >= share * progress.total_bytes]
        if passed and progress.total_bytes:
            del shares[: len(passed)]
            logger.info("loading %s: %.0f%% of %.2f GB", name, 100 * passed[-1], progress.total_bytes / 1e9)

    return log
