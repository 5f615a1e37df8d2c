"""A checkpoint, understood: what a model family makes of a `config.json` and the names of the tensors beside it."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import torch

from rose.models.base import CausalLM
from rose.models.weight_map import WeightRule


class ModelPlan(Protocol):
    """How to build one checkpoint's model and what fills it."""

    @property
    def architecture(self) -> str:
        """The `model_type`."""
        ...

    @property
    def config(self) -> Any:
        """The model's own config, a frozen dataclass."""
        ...

    @property
    def num_parameters(self) -> int:
        """Number of weights, in elements."""
        ...

    @property
    def num_quantized_weights(self) -> int:
        """How many of these the checkpoint holds in a quantized format."""
        ...

    def build(self, *, dtype: torch.dtype, packed: bool) -> CausalLM:
        """The model, a `torch.nn.Module` without memory.

        dtype: of activations. packed: keep quantized weights as they are rather than expanded to `dtype`.
        """
        ...

    def weight_rules(self, *, packed: bool) -> list[WeightRule]:
        """What fills the parameters of `build` with the same `packed`."""
        ...


MakePlan = Callable[[Mapping[str, Any], Collection[str], str], ModelPlan]
