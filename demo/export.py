"""Writing and reading the published layout: Hugging Face names, bfloat16, experts as MXFP4 blocks and scales."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from demo.config import DemoConfig, published_config
from demo.model import DemoModel
from rose.chat.tokenizer import Tokenizer
from rose.numerics import mxfp4

_EXPERT_WEIGHTS = ("gate_up_proj", "down_proj")


def _published_name(name: str) -> str:
    """A parameter's name in the checkpoint."""
    if name.startswith("lm_head"):
        return name
    name = f"model.{name}"
    return name if "mlp.router" in name else name.replace(".mlp.", ".mlp.experts.")


def published_tensors(model: DemoModel) -> dict[str, Tensor]:
    """The checkpoint's tensors, on the CPU."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        published, value = _published_name(name), parameter.detach().cpu()
        if published.endswith(_EXPERT_WEIGHTS):
            quantized = mxfp4.encode(value)
            tensors[f"{published}_blocks"] = quantized.blocks.contiguous()
            tensors[f"{published}_scales"] = quantized.scales.contiguous()
        else:
            tensors[published] = value.to(torch.bfloat16).contiguous()
    return tensors


def load_published(tensors: dict[str, Tensor], config: DemoConfig) -> DemoModel:
    """A model with a checkpoint's weights, dequantized: what a server computes with."""
    model = DemoModel(config, quantize=False)
    state: dict[str, Tensor] = {}
    for name, _ in model.named_parameters():
        published = _published_name(name)
        if published.endswith(_EXPERT_WEIGHTS):
            state[name] = mxfp4.decode(tensors[f"{published}_blocks"], tensors[f"{published}_scales"], torch.float32)
        else:
            state[name] = tensors[published].float()
    model.load_state_dict(state)
    return model.eval()


def write_checkpoint(model: DemoModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Write weights, `config.json` and `generation_config.json` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = {name: tokenizer.special_id(f"<|{name}|>") for name in ("startoftext", "endoftext", "return", "call")}
    eos, pad = ids["return"], ids["endoftext"]
    assert eos is not None and pad is not None, ids
    save_file(published_tensors(model), folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", published_config(model.config, eos, pad))
    generation = {
        "bos_token_id": ids["startoftext"],
        "do_sample": True,
        "eos_token_id": [eos, pad, ids["call"]],
        "pad_token_id": pad,
        "transformers_version": "4.55.0.dev0",
    }
    _write_json(folder / "generation_config.json", generation)


def read_checkpoint(folder: Path, config: DemoConfig) -> DemoModel:
    """The model in `folder`, dequantized."""
    return load_published(load_file(folder / "model.safetensors"), config)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
