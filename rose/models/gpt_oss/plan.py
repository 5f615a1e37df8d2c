"""gpt-oss, as the registry hands it out."""

from collections.abc import Collection, Mapping
from typing import Any

import torch

from rose.errors import CheckpointError, ConfigError, UnsupportedModel
from rose.layers.quant import quant_method
from rose.models.base import CausalLM
from rose.models.gpt_oss.config import GptOssConfig, read_config
from rose.models.gpt_oss.config_writer import OWN_METHOD, write_config
from rose.models.gpt_oss.model import GptOssForCausalLM
from rose.models.gpt_oss.weight_map import LAYOUTS, Stored, find_stored, weight_rules
from rose.models.plan import Destination
from rose.models.weight_map import WeightFormats, WeightRule, reverse
from rose.numerics.mxfp4 import BLOCK_ELEMENTS


class GptOssPlan:
    """One gpt-oss checkpoint. See `ModelPlan`."""

    architecture = "gpt_oss"

    def __init__(self, config: GptOssConfig, stored: Stored) -> None:
        self.config = config
        self._stored = stored

    @property
    def num_parameters(self) -> int:
        """Number of weights, in elements."""
        return self.config.num_parameters

    @property
    def num_expert_weights(self) -> int:
        """Elements of all expert matrices."""
        return self.config.num_expert_weights

    @property
    def layout(self) -> str:
        """`hf`, `original` or `rose`."""
        return self._stored.layout

    @property
    def stored(self) -> WeightFormats:
        """The formats the checkpoint holds."""
        return self._stored.formats

    def build(self, *, dtype: torch.dtype, formats: WeightFormats) -> CausalLM:
        """The model without memory. Raises ConfigError for formats that these sizes cannot have."""
        _check_formats(self.config, formats)
        return GptOssForCausalLM(
            self.config,
            dtype=dtype,
            expert_quant=quant_method(formats.experts),
            dense_quant=quant_method(formats.dense),
        )

    def weight_rules(self, formats: WeightFormats) -> list[WeightRule]:
        """See `weight_map`."""
        return weight_rules(self.config, self._stored, formats)

    def destination(self, layout: str, formats: WeightFormats) -> Destination:
        """See `write_config`. Raises ConfigError for a layout that does not exist or cannot hold the formats."""
        if layout not in LAYOUTS:
            raise ConfigError(f"the layout must be one of {', '.join(LAYOUTS)}, not {layout!r}")
        _check_formats(self.config, formats)
        stored = Stored(layout, formats)
        config = write_config(self.config, stored)
        return Destination(config, tuple(reverse(weight_rules(self.config, stored, formats))))


def make_plan(config: Mapping[str, Any], tensor_names: Collection[str], source: str) -> GptOssPlan:
    """Read `config`, a parsed `config.json` at the path `source`. Raises CheckpointError, UnsupportedModel."""
    quantization = config.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
    if method not in (None, "mxfp4", OWN_METHOD):
        raise UnsupportedModel(f"{source}: quantization_config is {method!r}; gpt-oss is served from mxfp4 or floats")
    plan = GptOssPlan(read_config(config, source), find_stored(tensor_names))
    if method == OWN_METHOD:
        _check_own(plan, quantization, source)
    for size in (plan.config.hidden_size, plan.config.moe.intermediate_size):
        if plan.stored.experts == "mxfp4" and size % BLOCK_ELEMENTS:
            raise UnsupportedModel(f"{source}: MXFP4 experts need sizes in multiples of {BLOCK_ELEMENTS}, got {size}")
    return plan


def _check_own(plan: GptOssPlan, said: Any, source: str) -> None:
    """Raise CheckpointError if the tensors are not in the formats that a config of rose's own gives."""
    found = {"experts": plan.stored.experts, "dense": plan.stored.dense}
    for weights, name in found.items():
        if said.get(weights) != name:
            raise CheckpointError(
                f"{source}: quantization_config says that {weights} are in {said.get(weights)}, the tensors' names say "
                f"{name}"
            )


def _check_formats(config: GptOssConfig, formats: WeightFormats) -> None:
    if formats.dense == "mxfp4":
        raise ConfigError("dense weights are bf16, fp8 or fp8-block; MXFP4 is for experts")
    for size in (config.hidden_size, config.moe.intermediate_size):
        if formats.experts == "mxfp4" and size % BLOCK_ELEMENTS:
            raise ConfigError(f"MXFP4 experts need sizes in multiples of {BLOCK_ELEMENTS}, got {size}")
