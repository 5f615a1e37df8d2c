"""The account of a load: every tensor of the checkpoint used exactly once, every parameter filled exactly once.

It is drawn up from headers alone, before any weight is read.
"""

from collections.abc import Mapping, Sequence

from torch import nn

from rose.layers.parameter import Parameter
from rose.models.weight_map import WeightRule
from rose.weights.safetensors_header import TensorInfo

_MAX_PROBLEMS_SHOWN = 5


def find_problems(
    tensors: Mapping[str, TensorInfo], rules: Sequence[WeightRule], model: nn.Module, folder: str
) -> list[str]:
    """What is wrong between a checkpoint's tensors, the rules, and the model's parameters; empty when nothing is.

    Each problem is one line that names the tensor and, where it is in one, the file. folder: the checkpoint's, for
    tensors that are in no file.
    """
    return [*_source_problems(tensors, rules, folder), *_target_problems(rules, model)]


def _source_problems(tensors: Mapping[str, TensorInfo], rules: Sequence[WeightRule], folder: str) -> list[str]:
    problems: list[str] = []
    used: set[str] = set()
    for source in (source for rule in rules for source in rule.sources):
        if source.name in used:
            problems.append(f"{folder}: {source.name} would be used twice")
        used.add(source.name)
        info = tensors.get(source.name)
        if info is None:
            problems.append(f"{folder}: {source.name} is missing, {list(source.shape)} {' or '.join(source.dtypes)}")
        elif info.shape != source.shape:
            problems.append(f"{info.file}: {info.name} is {list(info.shape)}, the config asks for {list(source.shape)}")
        elif info.dtype not in source.dtypes:
            problems.append(f"{info.file}: {info.name} is {info.dtype}, it must be {' or '.join(source.dtypes)}")
    left_over = [info for info in tensors.values() if info.name not in used]
    problems += [f"{info.file}: {info.name} {list(info.shape)} belongs nowhere in the model" for info in left_over]
    return problems


def _target_problems(rules: Sequence[WeightRule], model: nn.Module) -> list[str]:
    problems: list[str] = []
    filled: dict[str, list[int | None]] = {}
    for rule in rules:
        for target in rule.targets:
            filled.setdefault(target, []).append(rule.section)
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        assert isinstance(parameter, Parameter)
        sections = parameter.shard.sections
        whole: list[int | None] = [None]
        parts: list[int | None] = list(range(len(sections))) if sections else whole
        if filled.get(name) not in (whole, parts):
            problems.append(f"parameter {name} would be filled {filled.get(name, 'never')} instead of once as a whole")
    problems += [f"there is no parameter {name} to fill" for name in filled if name not in parameters]
    return problems


def summarize_problems(problems: Sequence[str]) -> str:
    """The first few, in one line."""
    shown = problems[:_MAX_PROBLEMS_SHOWN]
    more = len(problems) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")
