"""From a checkpoint on disk, or from nothing, to a model that is ready to run."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import nn

from rose.dist.placement import ALONE, Placement
from rose.errors import CheckpointError, ConfigError
from rose.kernels.hopper import is_hopper
from rose.layers.parameter import Parameter, check_split, finish_loading, materialize
from rose.log import get_logger
from rose.models.base import CausalLM
from rose.models.plan import ModelPlan
from rose.models.registry import plan_model
from rose.models.weight_map import WeightFormats, WeightRule
from rose.numerics.format import FormatName
from rose.weights.checkpoint import Checkpoint
from rose.weights.held import Held
from rose.weights.jobs import JOB_BYTES, Job, cut_into_jobs
from rose.weights.ledger import find_problems, summarize_problems
from rose.weights.resolve import resolve_checkpoint
from rose.weights.soundness import SoundnessCheck
from rose.weights.source import LoadTimes, Stopwatch, WeightSource
from rose.weights.synthetic import synthetic_source

logger = get_logger(__name__)

Progress = Callable[[int, int], None]
FormatChoice = Literal["auto"] | FormatName
FORMAT_CHOICES = ("auto", *get_args(FormatName))

# Up to this size expanded experts are worth their memory: a step then reads floats and decodes nothing. The published
# models are far above it (20b in bfloat16: 38 GB), the models people try things with far below.
_EXPAND_LIMIT_BYTES = 2 << 30


def load_model(
    name: str | Path,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    placement: Placement = ALONE,
    experts: FormatChoice = "auto",
    dense: FormatChoice = "auto",
    progress: Progress | None = None,
) -> CausalLM:
    """Load a checkpoint.

    name: see `resolve_checkpoint`. dtype: of activations, KV cache and weights that are plain floats. placement: of a
    rank, whose part of each parameter alone is loaded, see `ShardSpec`; layers compute with whole ones so far. Of the
    files only the rows that this part needs are read, but whole rows where it is some columns of them, as of
    attention's output projection, and whole blocks of 128 rows where these have a common scale. experts, dense:
    the formats to hold weights in, see `WeightFormats`; what is stored otherwise is converted on the way. `auto` is as
    stored, but MXFP4 experts become FP8 on a Hopper GPU, and elsewhere are expanded if they take no more than 2 GiB as
    floats. progress: called with (bytes done, bytes in all), from (0, all) on.

    Needs the memory of what is loaded and a few hundred MiB, no second copy. Raises CheckpointError, UnsupportedModel
    and, for an impossible format or a size that the placement's groups do not divide, ConfigError.
    """
    clock = Stopwatch()
    checkpoint = Checkpoint(resolve_checkpoint(name))
    times = LoadTimes(open_s=clock.lap())
    return load_from(
        checkpoint,
        device=device,
        dtype=dtype,
        placement=placement,
        experts=experts,
        dense=dense,
        progress=progress,
        times=times,
    )


def load_dummy(
    name: str | Path,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    placement: Placement = ALONE,
    experts: FormatChoice = "auto",
    dense: FormatChoice = "auto",
    progress: Progress | None = None,
) -> CausalLM:
    """`load_model` with made-up weights, drawn on `device`; see `synthetic_source` for `name`."""
    source = synthetic_source(str(name))
    return load_from(
        source, device=device, dtype=dtype, placement=placement, experts=experts, dense=dense, progress=progress
    )


def load_from(
    source: WeightSource,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    placement: Placement = ALONE,
    experts: FormatChoice = "auto",
    dense: FormatChoice = "auto",
    progress: Progress | None = None,
    times: LoadTimes | None = None,
) -> CausalLM:
    """`load_model` from any source of weights. times: with what opening it took."""
    times = times or LoadTimes()
    start, clock = time.perf_counter() - times.open_s, Stopwatch()
    device = torch.device(device)
    plan = plan_model(source.config, source.tensors.keys(), str(source.config_path))
    formats = choose_formats(plan, dtype, experts, dense, device)
    model = plan.build(dtype=dtype, formats=formats)
    rules = plan.weight_rules(formats)
    assert isinstance(model, nn.Module)
    problems = find_problems(source.tensors, rules, model, source.name)
    if problems:
        raise CheckpointError(summarize_problems(problems))
    check_split(model, placement)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    times.plan_s += clock.lap()
    materialize(model, device, placement)
    times.memory_s += clock.lap()
    work = _plan_work(model, rules, source, shapes, placement)
    times.plan_s += clock.lap()
    check = SoundnessCheck(source, at_once=device.type == "cpu")
    _fill(work, source, device, check, times, progress)
    clock.lap()
    check.finish()
    finish_loading(model, device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    times.finish_s += clock.lap()
    num_bytes = sum(job.num_bytes for job, _ in work)
    _log_load(source, plan, formats, placement, device, num_bytes, times, time.perf_counter() - start)
    return model


def choose_formats(
    plan: ModelPlan, dtype: torch.dtype, experts: FormatChoice, dense: FormatChoice, device: torch.device
) -> WeightFormats:
    """Resolve `auto`; see `load_model`. Raises ConfigError for a format that does not exist."""
    check_choices(experts, dense)
    stored = plan.stored
    if experts == "auto":
        experts = stored.experts
        if experts == "mxfp4" and is_hopper(device):
            experts = "fp8"  # exact, and what the matrix units multiply
        elif experts == "mxfp4" and plan.num_expert_weights * dtype.itemsize <= _EXPAND_LIMIT_BYTES:
            experts = "bf16"
    return WeightFormats(experts, stored.dense if dense == "auto" else dense)


def check_choices(experts: str, dense: str) -> None:
    """Raise ConfigError for a format that does not exist."""
    for option, value in (("experts", experts), ("dense", dense)):
        if value not in FORMAT_CHOICES:
            raise ConfigError(f"{option} must be one of {', '.join(FORMAT_CHOICES)}, not {value!r}")


def _plan_work(
    model: nn.Module,
    rules: list[WeightRule],
    source: WeightSource,
    shapes: dict[str, tuple[int, ...]],
    placement: Placement,
) -> list[tuple[Job, list[Held]]]:
    """What to read and where it goes. shapes: of whole parameters."""
    parameters = dict(model.named_parameters())
    work: list[tuple[Job, list[Held]]] = []
    for rule in rules:
        targets: list[Held] = []
        for name in rule.targets:
            parameter = parameters[name]
            assert isinstance(parameter, Parameter)
            targets.append(Held.of(parameter.data, parameter.shard, shapes[name], rule.section, placement))
        jobs = cut_into_jobs(
            rule,
            source.tensors,
            [target.shape for target in targets],
            wanted=[target.rows for target in targets],
            job_bytes=JOB_BYTES,
        )
        work += ((job, targets) for job in jobs)
    return work


def _fill(
    work: list[tuple[Job, list[Held]]],
    source: WeightSource,
    device: torch.device,
    check: SoundnessCheck,
    times: LoadTimes,
    progress: Progress | None,
) -> None:
    done, total = 0, sum(job.num_bytes for job, _ in work)
    if progress is not None:
        progress(done, total)
    batches = source.stream([job.slices for job, _ in work], device, times)
    for (job, targets), tensors in zip(work, batches, strict=True):
        clock = Stopwatch()
        check.look_at(job, tensors)
        outputs = [target.output(rows) for target, rows in zip(targets, job.target_rows, strict=True)]
        job.rule.transform.write(outputs, tensors)
        for target, rows, output in zip(targets, job.target_rows, outputs, strict=True):
            target.keep(rows, output)
        times.transform_s += clock.lap()
        done += job.num_bytes
        if progress is not None:
            progress(done, total)


def _log_load(
    source: WeightSource,
    plan: ModelPlan,
    formats: WeightFormats,
    placement: Placement,
    device: torch.device,
    num_bytes: int,
    times: LoadTimes,
    total_s: float,
) -> None:
    logger.info(
        "loaded %s: %s%.3g parameters on %s, experts %s, dense %s; %.2f GB in %.2f s (%.2f GB/s): opening %.2f, "
        "planning %.2f, memory %.2f, reads %.2f, copies %.2f, transforms %.2f, finishing %.2f",
        source.name,
        "" if placement == ALONE else f"the part of {placement}, of ",
        plan.num_parameters,
        device,
        formats.experts,
        formats.dense,
        num_bytes / 1e9,
        total_s,
        num_bytes / 1e9 / total_s,
        times.open_s,
        times.plan_s,
        times.memory_s,
        times.read_s,
        times.copy_s,
        times.transform_s,
        times.finish_s,
    )
