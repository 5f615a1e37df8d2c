"""How a checkpoint's tensors become a model's parameters: the vocabulary that every model's map is written in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

Fill = Callable[[Tensor, Sequence[Tensor]], None]


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """A tensor the checkpoint must hold. dtypes: the safetensors names that are accepted, such as `BF16`."""

    name: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WeightRule:
    """One parameter, or one section of it (see `ShardSpec.sections`), and what fills it.

    target: the parameter's name in the model. sources: read together, given to `fill` in this order.
    fill: writes the parameter, or the section's rows of it, in place; it may raise ValueError for impossible values.
    """

    target: str
    sources: tuple[SourceTensor, ...]
    fill: Fill
    section: int | None = None


def copy(target: Tensor, sources: Sequence[Tensor]) -> None:
    """Fill from the one source as it is, converting dtype and device. Raises ValueError for another shape."""
    (source,) = sources
    if source.shape != target.shape:
        raise ValueError(f"cannot fill {tuple(target.shape)} from {tuple(source.shape)}")
    target.copy_(source)
