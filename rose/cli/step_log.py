"""Log lines of work that takes minutes: each step as it begins and, now and then, how far it is."""

import time

from rose.log import get_logger

logger = get_logger(__name__)

_LOG_EVERY_S = 5.0


class StepLog:
    """The steps of one piece of work, one after the other."""

    def __init__(self) -> None:
        self._step = ""
        self._last_s = 0.0

    def begin(self, step: str) -> None:
        """A step begins."""
        self._step, self._last_s = step, time.monotonic()
        logger.info("%s", step)

    def at(self, part: str, number: int, total: int) -> None:
        """The step is at part `number` of `total`, from 1 on; told if nothing was for five seconds."""
        if time.monotonic() - self._last_s >= _LOG_EVERY_S:
            self._last_s = time.monotonic()
            logger.info("%s: %s %d of %d", self._step, part, number, total)
