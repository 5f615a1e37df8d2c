"""A checkpoint's parameters as float32, read one at a time: for a reference that never holds the model."""

from collections import defaultdict

import torch
from torch import Tensor, nn

from rose.layers.parameter import Parameter
from rose.models.registry import plan_model
from rose.models.weight_map import WeightFormats, WeightRule
from rose.weights.jobs import Job, cut_into_jobs
from rose.weights.source import LoadTimes, Slice, WeightSource

_CPU = torch.device("cpu")


class FloatWeights:
    """Parameters by the model's names, whatever layout and format the source has. Raises CheckpointError."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        plan = plan_model(source.config, source.tensors.keys(), str(source.config_path))
        formats = WeightFormats("bf16", "bf16")
        model = plan.build(dtype=torch.float32, formats=formats)
        assert isinstance(model, nn.Module)
        self._parameters = {name: p for name, p in model.named_parameters() if isinstance(p, Parameter)}
        self._rules: dict[str, list[WeightRule]] = defaultdict(list)
        for rule in plan.weight_rules(formats):
            (target,) = rule.targets
            self._rules[target].append(rule)

    def get(self, name: str) -> Tensor:
        """All of a parameter."""
        parameter = self._parameters[name]
        result = torch.empty(parameter.shape, dtype=torch.float32)
        for rule in self._rules[name]:
            view = result
            if rule.section is not None:
                view = result.narrow(0, *parameter.shard.section_range(rule.section))
            self._fill(view, list(cut_into_jobs(rule, self._source.tensors, [tuple(view.shape)])))
        return result

    def get_row(self, name: str, index: int) -> Tensor:
        """One entry of the first dimension of a parameter that can be cut there."""
        (rule,) = self._rules[name]
        slices = tuple(Slice(source.name, index, index + 1) for source in rule.sources)
        result = torch.empty((1, *self._parameters[name].shape[1:]), dtype=torch.float32)
        self._fill(result, [Job(rule, slices, ((0, 1),), 0, 0, 1)])
        return result[0]

    def _fill(self, view: Tensor, jobs: list[Job]) -> None:
        batches = self._source.stream([job.slices for job in jobs], _CPU, LoadTimes())
        for job, tensors in zip(jobs, batches, strict=True):
            ((first, last),) = job.target_rows
            job.rule.transform.fill([view[first:last] if view.dim() else view], tensors)
