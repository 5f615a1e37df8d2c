"""Whether a collapsed router is told from an even one."""

import pytest
import torch

from rose.bench.routing import RoutingCollector, observe_routing
from rose.layers.moe import MoE, MoEConfig
from rose.layers.quant import Unquantized

NUM_EXPERTS, K = 32, 4


def collect(*steps):
    collector = RoutingCollector()
    for layers in steps:
        for layer, logits in enumerate(layers):
            collector.record(str(layer), logits, K)
    return collector.report()


def even(num_tokens, seed=0):
    return torch.randn(num_tokens, NUM_EXPERTS, generator=torch.Generator().manual_seed(seed))


def collapsed(num_tokens):
    """Every token goes to experts 0 to 3."""
    return even(num_tokens) * 0.1 - torch.arange(NUM_EXPERTS)


def test_even_routing():
    report = collect([even(1000, 1), even(1000, 2)])
    assert report is not None
    assert (report.num_experts, report.experts_per_token, report.num_tokens) == (32, 4, 1000)
    assert report.used == 32
    assert 1.0 < report.max_over_mean < 1.4
    assert report.least_share > 0.95
    assert not report.has_collapsed


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 8, 64])
def test_a_small_batch_that_routes_evenly_is_no_collapse(num_tokens):
    report = collect(*([even(num_tokens, seed)] for seed in range(20)))
    assert report.used == pytest.approx(report.expected_used, rel=0.1)
    assert report.least_share > 0.9
    assert not report.has_collapsed


@pytest.mark.parametrize("num_tokens", [8, 64, 1000])
def test_a_collapse(num_tokens):
    report = collect([collapsed(num_tokens)])
    assert report.used == 4
    assert report.max_over_mean == 8.0
    assert report.has_collapsed


def test_one_bad_layer_is_enough():
    assert collect([even(100), even(100), collapsed(100)]).has_collapsed


def test_used_but_hardly():
    logits = collapsed(1000)
    logits[:32] = even(32)  # a few tokens go everywhere
    report = collect([logits])
    assert report.used > 20
    assert report.has_collapsed


def test_a_load_by_hand():
    # Two tokens of one choice each among four experts, both for expert 2.
    collector = RoutingCollector()
    collector.record("layer", torch.tensor([[0.0, 0.0, 9.0, 0.0]] * 2), 1)
    [load] = collector.loads()["layer"]
    assert load.counts == (0, 0, 2, 0)
    assert (load.num_used, load.max_over_mean) == (1, 4.0)
    assert load.expected_used == pytest.approx(4 * (1 - 0.75**2))
    assert load.effective_share == pytest.approx(1.0 * (1 - 0.25 + 0.5) / 2)


def test_the_layers_of_a_model_are_seen_only_inside_the_block():
    config = MoEConfig(
        hidden_size=8, intermediate_size=8, num_experts=4, experts_per_token=2, swiglu_alpha=1.702, swiglu_limit=7.0
    )
    model = torch.nn.ModuleList([MoE(config, dtype=torch.float32, expert_quant=Unquantized()) for _ in range(2)])
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter.data)
    x = torch.randn(5, 8)
    with torch.inference_mode(), observe_routing(model) as routing:
        for layer in model:
            layer(x)
    report = routing.report()
    assert (report.num_experts, report.experts_per_token, report.num_tokens) == (4, 2, 5)
    with torch.inference_mode():
        model[0](x)
    assert routing.report() == report


def test_nothing_seen():
    with observe_routing(object()) as routing:
        pass
    assert routing.report() is None
