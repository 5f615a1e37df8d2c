"""Parameters that know how they are sharded, and their life: declared without memory, materialized, filled."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """How a parameter is split over a group.

    dim: the dimension that is split evenly, None when every rank holds all of it. sections: sizes of the parts of
    that dimension that are split each on their own, such as query, key and value rows of one fused projection; None
    when it is one part.
    """

    dim: int | None = None
    sections: tuple[int, ...] | None = None

    def section_range(self, index: int) -> tuple[int, int]:
        """First row and number of rows of section `index` in the whole parameter."""
        if self.sections is None:
            raise ValueError("this parameter has no sections")
        return sum(self.sections[:index]), self.sections[index]


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


def materialize(module: nn.Module, device: torch.device) -> None:
    """Give every parameter under `module` memory on `device`. The values are whatever was there."""
    for submodule in module.modules():
        for name, parameter in submodule.named_parameters(recurse=False):
            if not isinstance(parameter, Parameter):
                raise TypeError(f"{type(submodule).__name__}.{name} was not made by new_parameter")
            if parameter.is_meta:
                # Not empty_like, which on the meta device makes torch import sympy: seconds of a start.
                data = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
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
