"""Cutting rules into jobs: each reads a few slices and writes a few, so that no more than these are in memory."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rose.models.weight_map import WeightRule
from rose.weights.safetensors_header import TensorInfo
from rose.weights.source import Slice

# Enough for a thread pool to work on, little enough that a few buffers of it are nothing beside a model.
JOB_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Job:
    """A part of a rule. target_rows: the first and last (exclusive) row of each target, within its section.

    index, count: which of the rule's parts this is, of how many.
    """

    rule: WeightRule
    slices: tuple[Slice, ...]
    target_rows: tuple[tuple[int, int], ...]
    num_bytes: int
    index: int
    count: int


def cut_into_jobs(
    rule: WeightRule,
    tensors: Mapping[str, TensorInfo],
    target_shapes: Sequence[tuple[int, ...]],
    *,
    job_bytes: int = JOB_BYTES,
) -> Iterator[Job]:
    """The jobs of a rule, in order. target_shapes: of each target, or of its section if the rule has one."""
    infos = [tensors[source.name] for source in rule.sources]
    num_bytes = sum(info.num_bytes for info in infos)
    heights = [_height(shape) for shape in (*(info.shape for info in infos), *target_shapes)]
    if rule.cut_rows is None or num_bytes <= job_bytes:
        steps, count = heights, 1
    else:
        num_parts = max(math.ceil(h / rows) for h, rows in zip(heights, rule.cut_rows, strict=True))
        parts_per_job = max(1, job_bytes * num_parts // num_bytes)
        steps = [rows * parts_per_job for rows in rule.cut_rows]
        count = math.ceil(num_parts / parts_per_job)
    for index in range(count):
        ranges = _ranges(heights, steps, index)
        slices = tuple(Slice(info.name, start, stop) for info, (start, stop) in zip(infos, ranges, strict=False))
        read = sum(info.row_bytes * (part.stop - part.start) for info, part in zip(infos, slices, strict=True))
        yield Job(rule, slices, tuple(ranges[len(infos) :]), read, index, count)


def describe_sources(job: Job, tensors: Mapping[str, TensorInfo]) -> str:
    """The tensors a job reads, with their files and, where it reads a part, the first row."""
    names = []
    for part in job.slices:
        rows = f" from row {part.start}" if job.count > 1 else ""
        names.append(f"{part.name} in {tensors[part.name].file}{rows}")
    return ", ".join(names)


def _ranges(heights: Sequence[int], steps: Sequence[int], index: int) -> list[tuple[int, int]]:
    return [
        (min(index * step, height), min((index + 1) * step, height))
        for height, step in zip(heights, steps, strict=True)
    ]


def _height(shape: tuple[int, ...]) -> int:
    return shape[0] if shape else 1
