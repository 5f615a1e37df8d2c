"""Whether a model's router spreads its tokens, so that its experts cost what they would in service.

A router that sends all tokens to the same few experts makes every step cheap: fewer weights are read, and they stay in
the cache. Random weights can do that, so no row counts unless its routing was looked at. This is done in steps of their
own, which are not timed.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rose.bench.summary import mean
from rose.layers.moe import MoE
from rose.plan.shape import experts_touched

COLLAPSED_BELOW = 0.5
"""Share of what even routing would give, of experts in use or of effective experts, below which a row is refused."""


@dataclass(frozen=True, slots=True)
class LayerLoad:
    """How one step's tokens met one layer's experts. counts: tokens for each expert."""

    num_tokens: int
    experts_per_token: int
    counts: tuple[int, ...]

    @property
    def num_used(self) -> int:
        """Experts with at least one token."""
        return sum(count > 0 for count in self.counts)

    @property
    def max_over_mean(self) -> float:
        """Tokens of the busiest expert over the average of all experts."""
        return max(self.counts) * len(self.counts) / sum(self.counts)

    @property
    def expected_used(self) -> float:
        """Experts in use if each token drew its own at random."""
        return experts_touched(len(self.counts), self.experts_per_token, self.num_tokens)

    @property
    def effective_share(self) -> float:
        """The effective number of experts, (sum c)^2 / sum c^2, over its expectation if tokens drew at random.

        A count is then a sum of n draws with p = k/E, so sum c^2 is about E n p (1 - p + n p).
        """
        n, k = self.num_tokens, self.experts_per_token
        p = k / len(self.counts)
        effective = sum(self.counts) ** 2 / sum(count * count for count in self.counts)
        return effective * (1 - p + n * p) / (n * k)


@dataclass(frozen=True, slots=True)
class RoutingReport:
    """The routing of some steps; means are over steps and layers.

    num_experts, experts_per_token: the model's. num_tokens: seen, summed over steps. used, expected_used: experts in
    use in a layer in a step, and how many even routing would use. max_over_mean: load of the busiest expert over the
    average; max_over_mean_worst: in the worst layer and step. least_share: the smallest ratio to even routing, of
    experts in use or of effective experts, in any layer, averaged over steps.
    """

    num_experts: int
    experts_per_token: int
    num_tokens: int
    used: float
    expected_used: float
    max_over_mean: float
    max_over_mean_worst: float
    least_share: float

    @property
    def has_collapsed(self) -> bool:
        """Whether some layer uses less than half of what it should."""
        return self.least_share < COLLAPSED_BELOW

    def to_dict(self) -> dict[str, Any]:
        """For a result's `routing`."""
        return dataclasses.asdict(self)


class RoutingCollector:
    """What `observe_routing` saw. Counts stay on the device until `report`, so that observing waits for nothing."""

    def __init__(self) -> None:
        self._counts: dict[str, list[Tensor]] = {}
        self._num_tokens: dict[str, list[int]] = {}
        self._experts_per_token = 0

    def record(self, layer: str, router_logits: Tensor, experts_per_token: int) -> None:
        """Take in the router logits [num_tokens, num_experts] of one layer in one step."""
        num_experts = router_logits.shape[1]
        chosen = router_logits.float().topk(experts_per_token, dim=-1).indices
        self._counts.setdefault(layer, []).append(torch.bincount(chosen.flatten(), minlength=num_experts))
        self._num_tokens.setdefault(layer, []).append(router_logits.shape[0])
        self._experts_per_token = experts_per_token

    def loads(self) -> dict[str, list[LayerLoad]]:
        """By layer, a load for each step."""
        k = self._experts_per_token
        return {
            layer: [
                LayerLoad(num_tokens, k, tuple(count.tolist()))
                for num_tokens, count in zip(self._num_tokens[layer], counts, strict=True)
            ]
            for layer, counts in self._counts.items()
        }

    def report(self) -> RoutingReport | None:
        """The summary, or None if no router was seen at work."""
        loads = self.loads()
        if not loads:
            return None
        every = [load for layer in loads.values() for load in layer]
        first_layer = next(iter(loads.values()))
        return RoutingReport(
            num_experts=len(every[0].counts),
            experts_per_token=every[0].experts_per_token,
            num_tokens=sum(load.num_tokens for load in first_layer),
            used=mean([load.num_used for load in every]),
            expected_used=mean([load.expected_used for load in every]),
            max_over_mean=mean([load.max_over_mean for load in every]),
            max_over_mean_worst=max(load.max_over_mean for load in every),
            least_share=min(_share(layer) for layer in loads.values()),
        )


def _share(steps: list[LayerLoad]) -> float:
    used = mean([step.num_used / step.expected_used for step in steps])
    return min(used, mean([step.effective_share for step in steps]))


@contextmanager
def observe_routing(model: object) -> Iterator[RoutingCollector]:
    """Watch the routers of a model while the block runs.

    The router is applied a second time to each MoE layer's input, whatever kernel does it within the layer. Replays of
    a captured graph call no layer and are not seen.
    """
    collector = RoutingCollector()
    handles = []
    if isinstance(model, nn.Module):
        for name, module in model.named_modules():
            if isinstance(module, MoE):
                handles.append(module.register_forward_pre_hook(_RouterHook(name, collector)))
    try:
        yield collector
    finally:
        for handle in handles:
            handle.remove()


class _RouterHook:
    """A forward pre-hook of one layer."""

    def __init__(self, layer: str, collector: RoutingCollector) -> None:
        self._layer = layer
        self._collector = collector

    def __call__(self, module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        """Route the layer's input."""
        assert isinstance(module, MoE)
        self._collector.record(self._layer, module.router(arguments[0]), module.config.experts_per_token)
