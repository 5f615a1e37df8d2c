"""Logging for every process of `rose`: one format, the process's role in each line."""

import logging
import os
import sys

from rose.errors import ConfigError

_FORMAT = "%(asctime)s %(levelname).1s [{role}] %(name)s: %(message)s"


def setup_logging(role: str = "rose", level: str | None = None) -> None:
    """Send the `rose` loggers to stderr.

    role: shown in each line, such as `server` or `engine`. level: a logging level name; by default
    `ROSE_LOGGING_LEVEL`, else INFO. Calling it again replaces the handler, so a child process may rename itself.
    Raises `ConfigError` for a level that is none.
    """
    level = (level or os.environ.get("ROSE_LOGGING_LEVEL") or "INFO").upper()
    if level not in logging.getLevelNamesMapping():
        raise ConfigError(f"ROSE_LOGGING_LEVEL must be DEBUG, INFO, WARNING or ERROR, not {level!r}")
    logger = logging.getLogger("rose")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT.format(role=role), datefmt="%H:%M:%S"))
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False


def get_logger(name: str) -> logging.Logger:
    """The logger of a module: call with `__name__`."""
    return logging.getLogger(name)
