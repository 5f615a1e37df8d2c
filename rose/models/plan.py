"""A checkpoint, understood: what a model family makes of a `config.json` and the names of the tensors beside it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from rose.models.base import CausalLM
from rose.models.weight_map import StoredTensor, WeightFormats, WeightRule


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
    def num_expert_weights(self) -> int:
        """How many of these are in matrices that `WeightFormats.experts` governs."""
        ...

    @property
    def layout(self) -> str:
        """Whose names the checkpoint's tensors have, such as `hf`."""
        ...

    @property
    def stored(self) -> WeightFormats:
        """The formats the checkpoint holds."""
        ...

    def build(self, *, dtype: torch.dtype, formats: WeightFormats) -> CausalLM:
        """The model, a `torch.nn.Module` without memory. dtype: of activations. Raises UnsupportedModel."""
        ...

    def weight_rules(self, formats: WeightFormats) -> list[WeightRule]:
        """What fills the parameters of `build` with the same formats."""
        ...

    def destination(self, layout: str, formats: WeightFormats) -> "Destination":
        """What a checkpoint of this model looks like elsewhere. Raises ConfigError for one that cannot be."""
        ...


@dataclass(frozen=True, slots=True)
class Destination:
    """A checkpoint to be written: its config.json, and its tensors in the order of the model's parameters."""

    config: Mapping[str, Any]
    tensors: tuple[StoredTensor, ...]


MakePlan = Callable[[Mapping[str, Any], Collection[str], str], ModelPlan]
