"""The slow float32 definitions that a model is compared with."""

import importlib
from collections.abc import Callable
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


def reference_oracle(checkpoint: Checkpoint, progress: Callable[[int, int], None] | None = None) -> Oracle:
    """rose's own definition of the model in plain torch, which shares no layer with the engine.

    progress: called with (layer, number of layers) as each layer begins, from 1 on.
    """
    config = read_config(checkpoint.config, str(checkpoint.config_path))
    weights = _WatchedWeights(checkpoint, lambda layer: progress and progress(layer + 1, config.num_layers))
    return lambda texts: reference_logits(config, weights, texts)


class _WatchedWeights(FloatWeights):
    """Tells when a layer's first parameter is read, which is when the layer begins."""

    def __init__(self, checkpoint: Checkpoint, on_layer: Callable[[int], object]) -> None:
        super().__init__(checkpoint)
        self._on_layer = on_layer

    def get(self, name: str) -> Tensor:
        """See `FloatWeights.get`."""
        match name.split("."):
            case ["blocks", layer, "attn_norm", _]:
                self._on_layer(int(layer))
        return super().get(name)


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
