import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rose.dist.group import SingleGroup
from rose.dist.parallel import ParallelConfig, ParallelContext
from rose.errors import ConfigError, UnsupportedShape
from rose.layers.forward_batch import AttentionSpec
from rose.layers.linear import GroupedLinear, Linear
from rose.layers.parameter import ShardSpec, materialize, new_parameter
from rose.layers.quant import Mxfp4, Unquantized
from rose.layers.quant.product import linear_float32
from rose.layers.single_request import SingleRequestCache
from rose.numerics import mxfp4

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_parameters_have_no_memory_until_materialized():
    layer = Linear(4, 6, bias=True, dtype=torch.bfloat16, quant=Unquantized(), shard=ShardSpec(dim=0, sections=(4, 2)))
    assert layer.weight.is_meta
    materialize(layer, CPU)
    assert (layer.weight.device, layer.weight.shape, layer.weight.dtype) == (CPU, (6, 4), torch.bfloat16)
    assert not layer.weight.requires_grad
    assert layer.weight.shard == layer.bias.shard == ShardSpec(dim=0, sections=(4, 2))
    before = layer.weight
    materialize(layer, CPU)
    assert layer.weight is before


def test_bias_of_a_layer_split_by_inputs_is_whole():
    layer = Linear(4, 6, bias=True, dtype=torch.float32, quant=Unquantized(), shard=ShardSpec(dim=1))
    assert layer.bias.shard == ShardSpec()
    assert Linear(4, 6, bias=False, dtype=torch.float32, quant=Unquantized()).bias is None


def test_parameters_made_otherwise_are_refused():
    with pytest.raises(TypeError, match=r"Linear\.weight was not made by new_parameter"):
        materialize(nn.Linear(2, 2), CPU)


def test_section_ranges():
    spec = ShardSpec(dim=0, sections=(6, 2, 3))
    assert [spec.section_range(index) for index in range(3)] == [(0, 6), (6, 2), (8, 3)]
    with pytest.raises(ValueError, match="no sections"):
        ShardSpec(dim=0).section_range(0)


def fill_linear(layer, weight, bias):
    materialize(layer, CPU)
    if isinstance(layer.quant, Mxfp4):
        layer.blocks.copy_(weight.blocks)
        layer.scales.copy_(weight.scales)
    else:
        layer.weight.copy_(weight.dequantize(layer.weight.dtype))
    layer.bias.copy_(bias)
    layer.after_load(CPU)


@pytest.mark.parametrize("quant", [Unquantized(), Mxfp4()], ids=lambda quant: type(quant).__name__)
def test_linear_is_the_product_with_the_dequantized_weight(quant):
    weight, bias, x = mxfp4.encode(torch.randn(10, 64)), torch.randn(10), torch.randn(3, 64)
    layer = Linear(64, 10, bias=True, dtype=torch.float32, quant=quant)
    fill_linear(layer, weight, bias)
    assert torch.allclose(layer(x), F.linear(x, weight.dequantize(torch.float32), bias), atol=1e-5)


@pytest.mark.parametrize("quant", [Unquantized(), Mxfp4()], ids=lambda quant: type(quant).__name__)
def test_grouped_linear_is_a_product_per_expert(quant):
    weight, bias, x = mxfp4.encode(torch.randn(3, 10, 64)), torch.randn(3, 10), torch.randn(5, 64)
    layer = GroupedLinear(3, 64, 10, dtype=torch.float32, quant=quant)
    fill_linear(layer, weight, bias)
    dense = weight.dequantize(torch.float32)
    expected = torch.cat([F.linear(x[:2], dense[0], bias[0]), F.linear(x[2:], dense[2], bias[2])])
    assert torch.allclose(layer(x, torch.tensor([0, 2, 2, 5])), expected, atol=1e-5)


def test_mxfp4_takes_a_quarter_and_a_bit_of_bfloat16():
    """4 bits an element and 8 bits for 32 of them: 4.25 against 16. Also at 2880, which is 22.5 times 128."""
    layer = GroupedLinear(2, 2880, 10, dtype=torch.bfloat16, quant=Mxfp4())
    num_bytes = sum(p.numel() * p.itemsize for p in (layer.blocks, layer.scales))
    assert num_bytes * 8 == 2 * 10 * 2880 * 4.25


def test_mxfp4_needs_blocks_of_32():
    with pytest.raises(UnsupportedShape, match="multiples of 32, got 40"):
        Linear(40, 8, bias=False, dtype=torch.float32, quant=Mxfp4())


def test_logits_of_bfloat16_weights_are_not_rounded():
    hidden, weight = torch.randn(3, 64).bfloat16(), torch.randn(20000, 64).bfloat16()
    logits = linear_float32(hidden, weight)
    assert logits.dtype == torch.float32
    assert torch.allclose(logits.double(), hidden.double() @ weight.double().t(), atol=1e-4)
    assert logits.unique().numel() > 40000  # in bfloat16 only some thousands of values are left


def test_the_group_of_one_changes_nothing():
    context = ParallelContext.create(ParallelConfig())
    x = torch.randn(2, 3)
    assert isinstance(context.tp, SingleGroup)
    assert (context.tp.rank, context.tp.size) == (0, 1)
    assert context.tp.all_reduce(x) is x
    assert context.ep.all_gather(x, dim=0) is x
    with pytest.raises(ConfigError, match="tp_size must be 1"):
        ParallelConfig(tp_size=2)


def test_single_request_cache_lays_tokens_side_by_side():
    specs = (AttentionSpec(2, 4, None), AttentionSpec(2, 4, 8))
    cache = SingleRequestCache(specs, 10, device=CPU, dtype=torch.float32, block_size=4)
    cache.batch([1, 2, 3])
    batch = cache.batch([7, 8])
    assert batch.token_ids.tolist() == [7, 8]
    assert batch.positions.tolist() == batch.layers[0].slot_mapping.tolist() == [3, 4]
    assert (batch.max_query_len, batch.max_kv_len) == (2, 5)
    assert (batch.cu_seqlens_q.tolist(), batch.seq_lens.tolist()) == ([0, 2], [5])
    assert batch.layers[1].key.shape == (3, 4, 2, 4)
    assert batch.layers[1].block_table.tolist() == [[0, 1, 2]]
    with pytest.raises(ValueError, match="11 tokens do not fit a cache for 10"):
        cache.batch([0] * 6)


def test_new_parameter_defaults_to_replicated():
    assert new_parameter((2,), torch.float32).shard.dim is None
