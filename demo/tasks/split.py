"""Which problems are kept out of training: decided by a hash of the problem, so no list has to be kept."""

import zlib
from collections.abc import Callable
from typing import TypeVar

from demo.tasks.example import Split

HELD_OUT_ONE_IN = 20

T = TypeVar("T")


def is_held_out(key: str) -> bool:
    """Whether the problem named by `key` belongs to the held-out set."""
    return zlib.crc32(key.encode()) % HELD_OUT_ONE_IN == 0


def draw(split: Split, sample: Callable[[], T | None], key: Callable[[T], str | None]) -> T:
    """Sample until there is a problem on the right side of the split.

    A sample of None is no problem at all; a problem whose key is None is always training material.
    """
    while True:
        problem = sample()
        if problem is None:
            continue
        name = key(problem)
        if (name is not None and is_held_out(name)) == (split == "held_out"):
            return problem
