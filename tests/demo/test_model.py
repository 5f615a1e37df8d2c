import json

import pytest
import torch
from safetensors.torch import load_file

from demo.config import DemoConfig, published_config
from demo.export import load_published, published_tensors, read_checkpoint, write_checkpoint
from demo.fake_quant import fake_quantize, round_to_mxfp4
from demo.model import DemoModel
from rose.numerics import mxfp4

SMALL = DemoConfig(
    vocab_size=64, hidden_size=64, num_layers=2, num_q_heads=4, num_kv_heads=2, intermediate_size=64, sliding_window=8
)


def _model(config=SMALL, quantize=True):
    """A model in which every parameter matters, biases and sinks too."""
    model = DemoModel(config, quantize)
    model.initialize()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 or name.endswith("bias"):
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


@pytest.mark.parametrize("scale", [1e-6, 0.02, 1.0, 300.0])
def test_training_rounds_as_the_export_does(scale):
    values = torch.randn(64, 8, 96, generator=torch.Generator().manual_seed(0)) * scale
    values[0] = 0
    values[1] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0]).repeat(12) * scale  # ties
    stored = mxfp4.encode(values).dequantize(torch.float32)
    assert torch.equal(round_to_mxfp4(values), stored)


def test_gradients_pass_straight_through_the_rounding():
    values = torch.randn(2, 32, requires_grad=True)
    (fake_quantize(values) * 3).sum().backward()
    assert torch.equal(values.grad, torch.full_like(values, 3))


@torch.no_grad()
def test_logits_equal_those_of_transformers():
    from transformers import GptOssConfig, GptOssForCausalLM

    model = load_published(published_tensors(_model()), SMALL)
    config = published_config(SMALL, eos_token_id=1, pad_token_id=2)
    del config["quantization_config"]  # the weights are given dequantized
    oracle = GptOssForCausalLM(GptOssConfig(**config)).float().eval()
    oracle.load_state_dict({_oracle_name(name): _oracle_value(name, p) for name, p in model.named_parameters()})
    tokens = torch.randint(0, SMALL.vocab_size, (2, 50), generator=torch.Generator().manual_seed(0))
    logits, _ = model(tokens, torch.ones_like(tokens))
    expected = oracle(tokens).logits
    assert expected.std() > 0.3
    assert (logits - expected).abs().max() < 1e-3


def _oracle_name(name):
    name = name if name.startswith("lm_head") else f"model.{name}"
    return name if "router" in name else name.replace(".mlp.", ".mlp.experts.")


def _oracle_value(name, parameter):
    """In transformers' experts the input dimension comes before the output dimension."""
    return parameter.transpose(1, 2).contiguous() if name.endswith(("gate_up_proj", "down_proj")) else parameter


@torch.no_grad()
def test_packed_documents_do_not_see_each_other():
    model = _model()
    tokens = torch.randint(0, SMALL.vocab_size, (1, 30))
    documents = torch.tensor([[1] * 12 + [2] * 18])
    packed, _ = model(tokens, documents)
    first, _ = model(tokens[:, :12], documents[:, :12])
    second, _ = model(tokens[:, 12:], documents[:, 12:])
    torch.testing.assert_close(packed, torch.cat((first, second), 1), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_an_even_load_has_balance_loss_one():
    model = DemoModel(SMALL)
    logits = torch.eye(SMALL.num_experts).repeat(4, 1) + torch.eye(SMALL.num_experts).roll(1, 1).repeat(4, 1)
    weights = (logits > 0).float() * 0.25
    loss = model.layers[0].mlp._balance_loss(logits, weights) * model.layers[0].mlp.top_k / 2
    torch.testing.assert_close(loss, torch.tensor(1.0))


def test_the_written_checkpoint_has_the_published_layout(tmp_path, tokenizer):
    model = _model()
    write_checkpoint(model, tokenizer, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    prefix = "model.layers.1.mlp.experts"
    assert tensors[f"{prefix}.gate_up_proj_blocks"].shape == (8, 128, 2, 16)
    assert tensors[f"{prefix}.down_proj_scales"].shape == (8, 64, 2)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16, torch.uint8}
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["layer_types"] == ["sliding_attention", "full_attention"]
    assert config["eos_token_id"] == tokenizer.special_id("<|return|>")
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    names = ("<|return|>", "<|endoftext|>", "<|call|>")
    assert generation["eos_token_id"] == [tokenizer.special_id(name) for name in names]
    again = published_tensors(read_checkpoint(tmp_path, SMALL))
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())


def test_the_full_size_fits():
    model = DemoModel(DemoConfig())
    model.initialize()
    num_bytes = sum(tensor.nbytes for tensor in published_tensors(model).values())
    assert 10e6 < num_bytes < 11.8e6
