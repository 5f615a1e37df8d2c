"""What a rank holds of the parameters that a rule fills, and how the rule's output gets there."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rose.dist.placement import Placement
from rose.layers.parameter import Range, ShardSpec


@dataclass(frozen=True, slots=True)
class Held:
    """A rank's part of a parameter, or of one of its sections.

    shape: of the whole, as a rule fills it. dim: the dimension that is split. ranges: what the rank has of it, side by
    side in `part`. part: the memory.
    """

    shape: tuple[int, ...]
    dim: int
    ranges: tuple[Range, ...]
    part: Tensor

    @classmethod
    def of(
        cls, part: Tensor, spec: ShardSpec, shape: tuple[int, ...], section: int | None, placement: Placement
    ) -> "Held":
        """Of a parameter that has `shape` as a whole. Raises ValueError as `ShardSpec.held` does."""
        if not shape:
            return cls(shape, 0, ((0, 1),), part)
        dim = spec.dim or 0
        ranges = spec.held(shape[dim], placement)
        if section is None:
            return cls(shape, dim, ranges, part)
        first, length = spec.section_range(section)
        before = sum(stop - start for start, stop in _within(ranges, (0, first)))
        inside = _within(ranges, (first, first + length))
        part = part.narrow(dim, before, sum(stop - start for start, stop in inside))
        ranges = tuple((start - first, stop - first) for start, stop in inside)
        return cls((*shape[:dim], length, *shape[dim + 1 :]), dim, ranges, part)

    @property
    def rows(self) -> tuple[Range, ...]:
        """The rows of the whole, along its first dimension, of which the rank holds something."""
        return self.ranges if self.dim == 0 or not self.shape else ((0, self.shape[0]),)

    def output(self, rows: Range) -> Tensor:
        """Where a rule is to write these rows of the whole.

        That is the rank's own memory if they are there from the first column to the last, else new memory, out of
        which `keep` then takes what the rank holds.
        """
        if not self.shape:
            return self.part
        shape = (rows[1] - rows[0], *self.shape[1:])
        pieces = list(self._pieces(rows))
        if len(pieces) == 1 and pieces[0][0].shape == shape:
            return pieces[0][0]
        return torch.empty(shape, dtype=self.part.dtype, device=self.part.device)

    def keep(self, rows: Range, output: Tensor) -> None:
        """Take what the rank holds of `rows` from what `output(rows)` gave, now filled."""
        if not self.shape:
            return
        for target, start in self._pieces(rows):
            if target.data_ptr() != output.data_ptr():
                target.copy_(output.narrow(self.dim, start, target.shape[self.dim]))

    def _pieces(self, rows: Range) -> Iterator[tuple[Tensor, int]]:
        """The memory of what the rank holds of these rows, and where along `dim` that starts in an output of them."""
        position = 0
        for start, stop in self.ranges:
            if self.dim > 0:
                yield self.part[rows[0] : rows[1]].narrow(self.dim, position, stop - start), start
            else:
                for low, high in _within([(start, stop)], rows):
                    yield self.part[position + low - start : position + high - start], low - rows[0]
            position += stop - start


def _within(ranges: Iterable[Range], bounds: Range) -> list[Range]:
    """What lies between the bounds."""
    cut = ((max(start, bounds[0]), min(stop, bounds[1])) for start, stop in ranges)
    return [(start, stop) for start, stop in cut if start < stop]
