"""Made-up checkpoints: the published shapes, the same numbers however they are read, and statistics that behave."""

import dataclasses
import json

import pytest
import torch

from rose.errors import CheckpointError, ConfigError
from rose.layers import moe
from rose.layers.single_request import SingleRequestCache
from rose.models.gpt_oss.config import read_config
from rose.models.gpt_oss.published import published_config
from rose.numerics import mxfp4
from rose.weights.loader import load_dummy, load_from
from rose.weights.source import LoadTimes, Slice
from rose.weights.synthetic import SyntheticSource, synthetic_source

CPU = torch.device("cpu")


def small_config(*, num_layers=2, num_experts=32, hidden=256, intermediate=256, vocab_size=1000):
    return published_config("gpt-oss-20b", num_layers) | {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_local_experts": num_experts,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": vocab_size,
        "max_position_embeddings": 8192,
    }


def read(source, *slices):
    ((*tensors,),) = source.stream([slices], CPU, LoadTimes())
    return tensors


@pytest.mark.parametrize(
    ("name", "parameters", "gigabytes"), [("gpt-oss-20b", 20.91e9, 13.76), ("openai/gpt-oss-120b", 116.83e9, 65.25)]
)
def test_published_shapes(name, parameters, gigabytes):
    source = synthetic_source(name)
    assert read_config(source.config, "config").num_parameters == pytest.approx(parameters, rel=1e-3)
    assert source.num_bytes / 1e9 == pytest.approx(gigabytes, rel=1e-3)


def test_slices_are_parts_of_the_whole():
    source = SyntheticSource(small_config(), "small", seed=3)
    name, experts = "model.embed_tokens.weight", "model.layers.1.mlp.experts.down_proj_scales"
    (whole,) = read(source, Slice(name, 0, 1000))
    first, middle = read(source, Slice(name, 0, 130), Slice(name, 130, 1000))
    assert torch.equal(torch.cat([first, middle]), whole)
    (all_experts,) = read(source, Slice(experts, 0, 32))
    assert torch.equal(read(source, Slice(experts, 7, 9))[0], all_experts[7:9])
    other = SyntheticSource(small_config(), "small", seed=4)
    assert not torch.equal(read(other, Slice(name, 0, 1000))[0], whole)


def test_codes_are_all_used_and_weights_have_their_size():
    source = SyntheticSource(small_config(), "small")
    stem = "model.layers.0.mlp.experts.gate_up_proj"
    blocks, scales = read(source, Slice(f"{stem}_blocks", 0, 32), Slice(f"{stem}_scales", 0, 32))
    shares = torch.bincount((blocks & 0xF).flatten().int(), minlength=16) / blocks.numel()
    assert ((shares > 0.05) & (shares < 0.08)).all()
    weight = mxfp4.decode(blocks, scales, torch.float32)
    assert weight.pow(2).mean().sqrt().item() == pytest.approx(1 / 16, rel=0.1)
    spread = scales.int().amax(-1) - scales.int().amin(-1)
    assert 1 <= spread.float().mean() <= 8


@pytest.mark.parametrize("num_experts", [32, 128])
def test_tokens_spread_over_experts_in_every_layer(num_experts, monkeypatch):
    counts = []

    def watch(router_logits, **options):
        routing = route(router_logits, **options)
        counts.append(routing.expert_offsets.diff().float())
        return routing

    route = moe.moe_routing
    monkeypatch.setattr(moe, "moe_routing", watch)
    config = small_config(num_layers=3, num_experts=num_experts, hidden=512, intermediate=64, vocab_size=10_000)
    model = load_from(SyntheticSource(config, "small"), device="cpu", dtype=torch.float32)
    ids = torch.randint(0, 10_000, (5000,), generator=torch.Generator().manual_seed(0)).tolist()
    cache = SingleRequestCache(model.attention_specs, len(ids), device=CPU, dtype=torch.float32)
    with torch.inference_mode():
        hidden = model.forward(cache.batch(ids))
    assert torch.isfinite(hidden).all()
    assert len(counts) == 3
    for count in counts:
        assert count.max() / count.mean() < 1.5
        assert count.min() > 0


@pytest.mark.parametrize("experts", ["mxfp4", "fp8", "fp8-block", "bf16"])
def test_dummy_weights_of_a_folder_with_a_config(tmp_path, experts):
    (tmp_path / "config.json").write_text(json.dumps(small_config()))
    model = load_dummy(tmp_path, device="cpu", dtype=torch.float32, experts=experts)
    for name, parameter in model.named_parameters():
        assert parameter.is_cpu, name
        if parameter.dtype in (torch.float32, torch.bfloat16):
            assert torch.isfinite(parameter).all(), name


def test_what_cannot_be_made_up(tmp_path):
    for num_layers in (-1, 0, 4097, 10**12):
        with pytest.raises(ConfigError, match=f"from 1 to 4096 layers, not {num_layers}"):
            synthetic_source("gpt-oss-20b", num_layers=num_layers)
    (tmp_path / "config.json").write_text(json.dumps(small_config() | {"model_type": "llama"}))
    with pytest.raises(CheckpointError, match="only gpt_oss models"):
        synthetic_source(str(tmp_path))
    with pytest.raises(ConfigError, match="number of layers can be chosen for"):
        synthetic_source(str(tmp_path), num_layers=2)


def test_layers_of_the_published_shape():
    source = synthetic_source("gpt-oss-120b", num_layers=1)
    config = read_config(source.config, "config")
    assert config == dataclasses.replace(config, layer_windows=(128,))
    assert source.tensors["model.layers.0.mlp.experts.gate_up_proj_blocks"].shape == (128, 5760, 90, 16)
