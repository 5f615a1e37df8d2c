"""Work that must stay in order within a lane, and may overlap between lanes: hashing and writing tensors."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, Self

P = ParamSpec("P")

# Pieces of work that may wait in a lane: what they hold in memory is what this bounds.
_MAX_WAITING = 2


class Lanes:
    """Threads, one for each lane. Use it in a `with` statement.

    What a piece of work raises comes out of the next `submit` to its lane, or of `wait`.
    """

    def __init__(self, count: int) -> None:
        self._pools = [ThreadPoolExecutor(1, f"rose-lane-{lane}") for lane in range(count)]
        self._waiting: list[deque[Future[None]]] = [deque() for _ in range(count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)

    @property
    def count(self) -> int:
        """Number of lanes."""
        return len(self._pools)

    def submit(self, lane: int, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call `work` after what was given to the lane before; waits while the lane has enough to do."""
        waiting = self._waiting[lane]
        while len(waiting) >= _MAX_WAITING:
            waiting.popleft().result()
        waiting.append(self._pools[lane].submit(work, *args, **kwargs))

    def wait(self) -> None:
        """Until everything is done."""
        for waiting in self._waiting:
            while waiting:
                waiting.popleft().result()
