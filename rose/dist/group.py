"""A set of processes that compute together, as a layer sees it."""

from typing import Protocol

from torch import Tensor


class Group(Protocol):
    """Collective operations among `size` processes, of which this is number `rank`."""

    @property
    def rank(self) -> int:
        """This process's number, from 0."""
        ...

    @property
    def size(self) -> int:
        """Number of processes."""
        ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of every process's `x`, of its shape and dtype. May be written into `x`."""
        ...

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """Every process's `x` side by side along `dim`, in order of rank."""
        ...


class SingleGroup:
    """The group of one: every collective is the identity."""

    rank = 0
    size = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        """`x` itself."""
        return x

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """`x` itself."""
        return x
