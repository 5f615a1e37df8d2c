"""gpt-oss, as the registry hands it out."""

from collections.abc import Collection, Mapping
from typing import Any

import torch

from rose.errors import UnsupportedModel
from rose.layers.quant import Mxfp4, Unquantized
from rose.models.base import CausalLM
from rose.models.gpt_oss.config import GptOssConfig, read_config
from rose.models.gpt_oss.model import GptOssForCausalLM
from rose.models.gpt_oss.weight_map import has_mxfp4_experts, weight_rules
from rose.models.weight_map import WeightRule
from rose.numerics.mxfp4 import BLOCK_ELEMENTS


class GptOssPlan:
    """One gpt-oss checkpoint. See `ModelPlan`."""

    architecture = "gpt_oss"

    def __init__(self, config: GptOssConfig, tensor_names: Collection[str]) -> None:
        self.config = config
        self._tensor_names = frozenset(tensor_names)

    @property
    def num_parameters(self) -> int:
        """Number of weights, in elements."""
        return self.config.num_parameters

    @property
    def num_quantized_weights(self) -> int:
        """All expert matrices, or none."""
        return self.config.num_expert_weights if has_mxfp4_experts(self._tensor_names) else 0

    def build(self, *, dtype: torch.dtype, packed: bool) -> CausalLM:
        """The model without memory; `packed` experts stay in MXFP4."""
        return GptOssForCausalLM(self.config, dtype=dtype, expert_quant=Mxfp4() if packed else Unquantized())

    def weight_rules(self, *, packed: bool) -> list[WeightRule]:
        """See `weight_map`."""
        return weight_rules(self.config, self._tensor_names, packed_experts=packed)


def make_plan(config: Mapping[str, Any], tensor_names: Collection[str], source: str) -> GptOssPlan:
    """Read `config`, a parsed `config.json` at the path `source`. Raises CheckpointError, UnsupportedModel."""
    quantization = config.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
    if method not in (None, "mxfp4"):
        raise UnsupportedModel(f"{source}: quantization_config is {method!r}; gpt-oss is served from mxfp4 or floats")
    plan = GptOssPlan(read_config(config, source), tensor_names)
    for size in (plan.config.hidden_size, plan.config.moe.intermediate_size):
        if plan.num_quantized_weights and size % BLOCK_ELEMENTS:
            raise UnsupportedModel(f"{source}: MXFP4 experts need sizes in multiples of {BLOCK_ELEMENTS}, got {size}")
    return plan
