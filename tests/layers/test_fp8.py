"""FP8 layers against the product of their dequantized weights with rounded activations, computed in float64."""

import pytest
import torch

from rose.layers.embedding import Unembedding
from rose.layers.linear import GroupedLinear, Linear
from rose.layers.parameter import ShardSpec, materialize
from rose.layers.quant import Fp8Block, Fp8Row
from rose.numerics import fp8
from rose.numerics.format import get_format

CPU = torch.device("cpu")
ROUNDING = {"fp8": fp8.round_tokens, "fp8-block": fp8.round_token_groups}
QUANTS = [
    (Fp8Row(), "fp8", True),
    (Fp8Row(round_activations=False), "fp8", False),
    (Fp8Block(), "fp8-block", True),
    (Fp8Block(round_activations=False), "fp8-block", False),
]
EACH = pytest.mark.parametrize(("quant", "name", "rounds"), QUANTS, ids=lambda value: str(value))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def fill(layer, name, weight):
    """Returns the weight that the layer now holds, in float64."""
    form = get_format(name)
    materialize(layer, CPU)
    parts = form.encode(weight)
    for part, values in zip(form.parts(tuple(weight.shape)), parts, strict=True):
        layer.get_parameter(part.suffix).copy_(values)
    if getattr(layer, "bias", None) is not None:
        layer.bias.copy_(torch.randn(layer.bias.shape))
    layer.after_load(CPU)
    return form.decode(parts, torch.float64)


@EACH
def test_linear(quant, name, rounds):
    layer = Linear(300, 200, bias=True, dtype=torch.float32, quant=quant)
    weight = fill(layer, name, torch.randn(200, 300))
    x = torch.randn(5, 300) * torch.tensor([1e-3, 1, 1, 10, 1e3]).unsqueeze(1)
    rounded = ROUNDING[name](x) if rounds else x
    expected = rounded.double() @ weight.T + layer.bias.double()
    assert torch.allclose(layer(x).double(), expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@EACH
def test_grouped_linear(quant, name, rounds):
    layer = GroupedLinear(3, 160, 130, dtype=torch.float32, quant=quant)
    weight = fill(layer, name, torch.randn(3, 130, 160))
    x = torch.randn(5, 160)
    rounded = (ROUNDING[name](x) if rounds else x).double()
    parts = [rounded[:2] @ weight[0].T + layer.bias[0].double(), rounded[2:] @ weight[2].T + layer.bias[2].double()]
    assert torch.allclose(layer(x, torch.tensor([0, 2, 2, 5])).double(), torch.cat(parts), atol=1e-4)


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_unembedding_is_not_rounded_and_may_be_wider_than_a_slice(quant, name, rounds, dtype):
    layer = Unembedding(8192 + 300, 64, dtype=dtype, quant=quant)
    weight = fill(layer, name, torch.randn(8192 + 300, 64))
    x = torch.randn(3, 64).to(dtype)
    logits = layer(x)
    assert logits.dtype == torch.float32
    expected = (ROUNDING[name](x) if rounds else x).double() @ weight.T
    assert torch.allclose(logits.double(), expected, atol=1e-3)


@pytest.mark.parametrize(("quant", "scales"), [(Fp8Row(), "row_scales"), (Fp8Block(), "block_scales")], ids=str)
def test_scales_are_split_as_their_weight_is(quant, scales):
    by_rows = Linear(256, 384, bias=True, dtype=torch.float32, quant=quant, shard=ShardSpec(dim=0))
    assert by_rows.weight.shard.dim == by_rows.get_parameter(scales).shard.dim == 0
    by_columns = Linear(256, 384, bias=True, dtype=torch.float32, quant=quant, shard=ShardSpec(dim=1))
    assert by_columns.weight.shard.dim == 1
    assert by_columns.get_parameter(scales).shard.dim == (1 if scales == "block_scales" else None)
    assert by_rows.weight.dtype == fp8.E4M3
