"""The slow float32 definitions that a model is compared with."""

import importlib
from typing import Any

import torch
from torch import Tensor

from rose.errors import ConfigError
from rose.models.gpt_oss.config import read_config
from rose.models.gpt_oss.reference import reference_logits
from rose.models.gpt_oss.weight_map import find_stored
from rose.weights.agreement import Oracle
from rose.weights.checkpoint import Checkpoint
from rose.weights.float_weights import FloatWeights


def reference_oracle(checkpoint: Checkpoint) -> Oracle:
    """rose's own definition of the model in plain torch, which shares no layer with the engine."""
    config = read_config(checkpoint.config, str(checkpoint.config_path))
    weights = FloatWeights(checkpoint)
    return lambda texts: reference_logits(config, weights, texts)


def transformers_oracle(checkpoint: Checkpoint) -> Oracle:
    """transformers, all of it in float32. Raises ConfigError where it is not installed, or cannot read the layout."""
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError:
        raise ConfigError("--against transformers needs transformers 5: pip install transformers") from None
    if find_stored(checkpoint.tensors).layout != "hf":
        raise ConfigError("transformers reads the hf layout only; use --against reference")
    options: dict[str, Any] = {}
    if "quantization_config" in checkpoint.config:
        options["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
    model: Any = transformers.GptOssForCausalLM.from_pretrained(
        checkpoint.folder,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        **options,
    )
    model = model.float().eval()

    def logits(texts: list[list[int]]) -> list[Tensor]:
        with torch.inference_mode():
            return [model(torch.tensor([text])).logits[0] for text in texts]

    return logits
