"""What a checkpoint holds, where each tensor goes and what fills each parameter, without reading a weight."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from rose.layers.parameter import Parameter
from rose.models.plan import ModelPlan
from rose.models.registry import plan_model
from rose.models.weight_map import WeightRule
from rose.weights.checkpoint import Checkpoint
from rose.weights.ledger import find_problems
from rose.weights.safetensors_header import DTYPE_NAMES, TensorInfo


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of the checkpoint.

    destination: the parameter it fills, with the rows if not all; None for nowhere. transform: how, in a few words.
    """

    tensor: TensorInfo
    destination: str | None
    transform: str | None


@dataclass(frozen=True, slots=True)
class Filled:
    """A parameter of the model, as its formats store it, and the tensors that fill it. dtype: the safetensors name."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inventory:
    """A checkpoint, tensor by tensor in order of name, and what `load_model` would object to."""

    plan: ModelPlan
    entries: tuple[Entry, ...]
    parameters: tuple[Filled, ...]
    problems: tuple[str, ...]


def take_inventory(checkpoint: Checkpoint) -> Inventory:
    """Compare a checkpoint's headers with the model its config describes, in the formats that are stored.

    Raises UnsupportedModel, CheckpointError.
    """
    plan = plan_model(checkpoint.config, checkpoint.tensors.keys(), str(checkpoint.config_path))
    model = plan.build(dtype=torch.bfloat16, formats=plan.stored)
    assert isinstance(model, nn.Module)
    rules = plan.weight_rules(plan.stored)
    parameters = dict(model.named_parameters())
    uses = {
        source.name: (_destination(rule, index, parameters), rule.transform.name)
        for rule in rules
        for index, source in enumerate(rule.sources)
    }
    tensors = sorted(checkpoint.tensors.values(), key=lambda tensor: _natural_order(tensor.name))
    return Inventory(
        plan=plan,
        entries=tuple(Entry(tensor, *uses.get(tensor.name, (None, None))) for tensor in tensors),
        parameters=tuple(
            Filled(name, DTYPE_NAMES[parameter.dtype], tuple(parameter.shape), _sources_of(name, rules))
            for name, parameter in parameters.items()
        ),
        problems=tuple(find_problems(checkpoint.tensors, rules, model, str(checkpoint.folder))),
    )


def _natural_order(name: str) -> list[tuple[int, str]]:
    """A sort key by which layer 10 comes after layer 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _destination(rule: WeightRule, index: int, parameters: dict[str, nn.Parameter]) -> str:
    """What source `index` of the rule fills; with as many targets as sources, the one in its place."""
    target = _targets_of(rule, index)
    parameter = parameters.get(target)
    if rule.section is None or not isinstance(parameter, Parameter):
        return target
    start, length = parameter.shard.section_range(rule.section)
    return f"{target}[{start}:{start + length}]"


def _targets_of(rule: WeightRule, index: int) -> str:
    return rule.targets[index] if len(rule.targets) == len(rule.sources) else ", ".join(rule.targets)


def _sources_of(parameter: str, rules: Sequence[WeightRule]) -> tuple[str, ...]:
    return tuple(
        source.name
        for rule in rules
        if parameter in rule.targets
        for index, source in enumerate(rule.sources)
        if parameter in _targets_of(rule, index).split(", ")
    )
