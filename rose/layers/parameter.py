"""Parameters that know how they are sharded, and their life: declared without memory, materialized, filled."""

import math
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from rose.dist.placement import ALONE, GroupName, Placement
from rose.errors import ConfigError

# The first entry and the one after the last.
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """How a parameter is split over a group of ranks.

    dim: the dimension that is split evenly, None when every rank holds all of it. sections: sizes of the parts of
    that dimension that are split each on their own, such as query, key and value rows of one fused projection; None
    when it is one part. group: over whose ranks. unit: how many entries of the dimension stay together, from the start
    of a section on, such as the rows of a head or of a block with one scale.
    """

    dim: int | None = None
    sections: tuple[int, ...] | None = None
    group: GroupName = "tp"
    unit: int = 1

    def section_range(self, index: int) -> tuple[int, int]:
        """First row and number of rows of section `index` in the whole parameter."""
        if self.sections is None:
            raise ValueError("this parameter has no sections")
        return sum(self.sections[:index]), self.sections[index]

    def of_blocks(self, size: int) -> "ShardSpec":
        """How to split what has one entry for each block of `size` entries of `dim`, such as scales; see `keeping`."""
        # Sections that do not fill their blocks are never split: the unit of `keeping` forbids it.
        sections = None if self.sections is None else tuple(-(-section // size) for section in self.sections)
        return replace(self, sections=sections, unit=math.lcm(self.unit, size) // size)

    def keeping(self, size: int) -> "ShardSpec":
        """The same split, but no block of `size` entries is cut."""
        return replace(self, unit=math.lcm(self.unit, size))

    def held(self, length: int, placement: Placement) -> tuple[Range, ...]:
        """The ranges of `dim`, which has `length` entries, that a rank holds side by side: one for each section.

        Raises ValueError if the ranks' parts would not be equal, or would cut a unit.
        """
        place = placement.of(self.group)
        if self.dim is None or place.size == 1:
            return ((0, length),)
        ranges: list[Range] = []
        start = 0
        for section in self.sections or (length,):
            if section % (place.size * self.unit):
                units = f" in multiples of {self.unit}" if self.unit > 1 else ""
                raise ValueError(f"{section} cannot be split into {place.size} equal parts{units}")
            size = section // place.size
            ranges.append((start + place.rank * size, start + (place.rank + 1) * size))
            start += section
        return tuple(ranges)

    def held_shape(self, shape: tuple[int, ...], placement: Placement) -> tuple[int, ...]:
        """The shape of a rank's part of a parameter. Raises ValueError as `held` does."""
        if self.dim is None:
            return shape
        size = sum(stop - start for start, stop in self.held(shape[self.dim], placement))
        return (*shape[: self.dim], size, *shape[self.dim + 1 :])


REPLICATED = ShardSpec()


class Parameter(nn.Parameter):
    """A weight with its ShardSpec; never trained here, so it asks for no gradient."""

    shard: ShardSpec

    def __new__(cls, data: Tensor, shard: ShardSpec) -> "Parameter":
        """Wrap `data`."""
        self: Parameter = super().__new__(cls, data, requires_grad=False)
        self.shard = shard
        return self


def new_parameter(shape: tuple[int, ...], dtype: torch.dtype, shard: ShardSpec = REPLICATED) -> Parameter:
    """A parameter without memory, on the meta device."""
    return Parameter(torch.empty(shape, dtype=dtype, device="meta"), shard)


def check_split(module: nn.Module, placement: Placement) -> None:
    """Raise ConfigError, naming the parameter, unless every one under `module` can be split as `placement` asks."""
    for name, parameter in module.named_parameters():
        assert isinstance(parameter, Parameter)
        try:
            parameter.shard.held_shape(tuple(parameter.shape), placement)
        except ValueError as error:
            group = parameter.shard.group
            raise ConfigError(
                f"{name} {list(parameter.shape)} cannot be held by {placement.of(group).size} ranks ({group}): {error}"
            ) from None


def materialize(module: nn.Module, device: torch.device, placement: Placement = ALONE) -> None:
    """Give every parameter under `module` memory on `device`, for a rank's part. The values are whatever was there.

    Raises ValueError as `ShardSpec.held` does.
    """
    for submodule in module.modules():
        for name, parameter in submodule.named_parameters(recurse=False):
            if not isinstance(parameter, Parameter):
                raise TypeError(f"{type(submodule).__name__}.{name} was not made by new_parameter")
            if parameter.is_meta:
                shape = parameter.shard.held_shape(tuple(parameter.shape), placement)
                # Not empty_like, which on the meta device makes torch import sympy: seconds of a start.
                data = torch.empty(shape, dtype=parameter.dtype, device=device)
                setattr(submodule, name, Parameter(data, parameter.shard))


@runtime_checkable
class AfterLoad(Protocol):
    """A layer with something to do once its parameters are filled."""

    def after_load(self, device: torch.device) -> None:
        """Rearrange or compute what depends on the weights or on the device they are on. Called once."""
        ...


def finish_loading(module: nn.Module, device: torch.device) -> None:
    """Let every layer under `module` do what it does after loading."""
    for submodule in module.modules():
        if isinstance(submodule, AfterLoad):
            submodule.after_load(device)
