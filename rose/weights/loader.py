"""From a checkpoint on disk to a model that is ready to run."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from rose.dist.parallel import ParallelConfig
from rose.errors import CheckpointError
from rose.layers.parameter import Parameter, finish_loading, materialize
from rose.log import get_logger
from rose.models.base import CausalLM
from rose.models.plan import ModelPlan
from rose.models.registry import plan_model
from rose.models.weight_map import WeightRule
from rose.weights.checkpoint import Checkpoint
from rose.weights.ledger import find_problems
from rose.weights.resolve import resolve_checkpoint

logger = get_logger(__name__)

Progress = Callable[[int, int], None]
ExpertStorage = Literal["auto", "packed", "expanded"]

# Up to this size expanded experts are worth their memory: a step then reads floats and decodes nothing. The published
# models are far above it (20b in bfloat16: 38 GB), the models people try things with far below.
_EXPAND_LIMIT_BYTES = 2 << 30
_MAX_PROBLEMS_SHOWN = 5


def load_model(
    name: str | Path,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    parallel: ParallelConfig | None = None,
    expert_storage: ExpertStorage = "auto",
    progress: Progress | None = None,
) -> CausalLM:
    """Load a checkpoint.

    name: see `resolve_checkpoint`. dtype: of activations, KV cache and unquantized weights. expert_storage: `packed`
    keeps MXFP4 experts as they are and decodes the ones in use at every step; `expanded` decodes them all to `dtype`
    now; `auto` expands them if that takes no more than 2 GiB. progress: called with (bytes done, bytes in all), from
    (0, all) on, after each tensor.

    Needs the model's memory and that of the largest tensor, no second copy. Raises CheckpointError, UnsupportedModel
    and, for an impossible `parallel`, ConfigError.
    """
    del parallel  # Sizes other than 1 cannot be constructed yet.
    device = torch.device(device)
    checkpoint = Checkpoint(resolve_checkpoint(name))
    plan = plan_model(checkpoint.config, checkpoint.tensors.keys(), str(checkpoint.config_path))
    packed = _choose_packed(plan, dtype, expert_storage)
    model = plan.build(dtype=dtype, packed=packed)
    rules = plan.weight_rules(packed=packed)
    assert isinstance(model, nn.Module)
    problems = find_problems(checkpoint.tensors, rules, model, str(checkpoint.folder))
    if problems:
        raise CheckpointError(_summarize(problems))
    materialize(model, device)
    _fill(model, rules, checkpoint, progress)
    finish_loading(model, device)
    experts = "packed" if packed else "expanded"
    logger.info("loaded %s: %.3g parameters, %s on %s, experts %s", name, plan.num_parameters, dtype, device, experts)
    return model


def _choose_packed(plan: ModelPlan, dtype: torch.dtype, expert_storage: ExpertStorage) -> bool:
    if plan.num_quantized_weights == 0 or expert_storage == "expanded":
        return False
    return expert_storage == "packed" or plan.num_quantized_weights * dtype.itemsize > _EXPAND_LIMIT_BYTES


def _fill(model: nn.Module, rules: list[WeightRule], checkpoint: Checkpoint, progress: Progress | None) -> None:
    parameters = dict(model.named_parameters())
    done, total = 0, checkpoint.num_bytes
    if progress is not None:
        progress(done, total)
    for rule in rules:
        parameter = parameters[rule.target]
        assert isinstance(parameter, Parameter)
        target = parameter.data
        if rule.section is not None:
            target = target.narrow(0, *parameter.shard.section_range(rule.section))
        try:
            rule.fill(target, [checkpoint.read(source.name) for source in rule.sources])
        except ValueError as error:
            where = ", ".join(f"{source.name} in {checkpoint.tensors[source.name].file}" for source in rule.sources)
            raise CheckpointError(f"cannot load {where}: {error}") from error
        done += sum(checkpoint.tensors[source.name].num_bytes for source in rule.sources)
        if progress is not None:
            progress(done, total)


def _summarize(problems: list[str]) -> str:
    shown = problems[:_MAX_PROBLEMS_SHOWN]
    more = len(problems) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")
