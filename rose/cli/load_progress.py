"""Showing how far a model has loaded: a bar on a terminal, a few log lines elsewhere."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bar

from rose.log import get_logger

logger = get_logger(__name__)

_LOG_EVERY_S = 5.0
_RATE_OVER_S = 30.0  # as the bar has it

Progress = Callable[[int, int], None]
"""Called with the bytes of weights that are done, and those in all."""


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
    last = time.monotonic()
    # Times and bytes. Not since the beginning: what was done before a conversion goes on took no time, and tensors
    # that are only copied come before those that are computed.
    seen: deque[tuple[float, int]] = deque()

    def log(done_bytes: int, total_bytes: int) -> None:
        nonlocal last
        now = time.monotonic()
        seen.append((now, done_bytes))
        while len(seen) > 2 and now - seen[1][0] > _RATE_OVER_S:
            seen.popleft()
        if total_bytes and now - last >= _LOG_EVERY_S:
            last = now
            share, total_gb = 100 * done_bytes / total_bytes, total_bytes / 1e9
            left = _time_left(*seen[0], now, done_bytes, total_bytes)
            logger.info("%s %s: %.0f%% of %.1f GB%s", verb, name, share, total_gb, left)

    return log


def _time_left(since: float, bytes_then: int, now: float, done_bytes: int, total_bytes: int) -> str:
    if done_bytes <= bytes_then:
        return ""
    return f", {(now - since) * (total_bytes - done_bytes) / (done_bytes - bytes_then):.0f} s to go"
