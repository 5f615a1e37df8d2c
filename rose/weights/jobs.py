"""Cutting rules into jobs: each reads a few slices and writes a few, so that no more than these are in memory."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rose.layers.parameter import Range
from rose.models.weight_map import WeightRule
from rose.weights.safetensors_header import TensorInfo
from rose.weights.source import Slice

# Enough for a thread pool to work on, little enough that a few buffers of it are nothing beside a model.
JOB_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Job:
    """Some neighbouring parts of a rule, see `WeightRule.cut_rows`.

    target_rows: the first and last (exclusive) row of each target, within its section. index, count: which of the
    rule's jobs this is, of how many.
    """

    rule: WeightRule
    slices: tuple[Slice, ...]
    target_rows: tuple[Range, ...]
    num_bytes: int
    index: int
    count: int


def cut_into_jobs(
    rule: WeightRule,
    tensors: Mapping[str, TensorInfo],
    target_shapes: Sequence[tuple[int, ...]],
    *,
    wanted: Sequence[Sequence[Range]] | None = None,
    job_bytes: int = JOB_BYTES,
) -> Iterator[Job]:
    """The jobs of a rule, in order. target_shapes: of each target, or of its section if the rule has one.

    wanted: the rows of each target, or of its section, that are needed, if that is not all. There are jobs for the
    parts of the rule that hold such rows, and for no others: at the edge of a part they give rows that are not wanted.
    """
    infos = [tensors[source.name] for source in rule.sources]
    heights = [_height(shape) for shape in (*(info.shape for info in infos), *target_shapes)]
    part_rows = rule.cut_rows or tuple(max(1, height) for height in heights)
    num_parts = max(math.ceil(height / rows) for height, rows in zip(heights, part_rows, strict=True))
    runs = [(0, num_parts)] if wanted is None else _find_parts(wanted, part_rows[len(infos) :])
    num_bytes = sum(info.num_bytes for info in infos)
    parts_per_job = max(1, job_bytes * num_parts // max(1, num_bytes))
    pieces = [
        (first, min(first + parts_per_job, last)) for start, last in runs for first in range(start, last, parts_per_job)
    ]
    for index, piece in enumerate(pieces):
        ranges = [_rows_of(piece, rows, height) for rows, height in zip(part_rows, heights, strict=True)]
        slices = tuple(Slice(info.name, start, stop) for info, (start, stop) in zip(infos, ranges, strict=False))
        read = sum(info.row_bytes * (part.stop - part.start) for info, part in zip(infos, slices, strict=True))
        yield Job(rule, slices, tuple(ranges[len(infos) :]), read, index, len(pieces))


def describe_sources(job: Job, tensors: Mapping[str, TensorInfo]) -> str:
    """The tensors a job reads, with their files and, where it reads a part, the first row."""
    names = []
    for part in job.slices:
        info = tensors[part.name]
        rows = f" from row {part.start}" if part.stop - part.start < _height(info.shape) else ""
        names.append(f"{part.name} in {info.file}{rows}")
    return ", ".join(names)


def _find_parts(wanted: Sequence[Sequence[Range]], part_rows: Sequence[int]) -> list[Range]:
    """The parts that hold any target's wanted rows, as ranges without overlap, in order."""
    found = sorted(
        (start // rows, math.ceil(stop / rows))
        for ranges, rows in zip(wanted, part_rows, strict=True)
        for start, stop in ranges
    )
    runs: list[Range] = []
    for first, last in found:
        if runs and first <= runs[-1][1]:
            runs[-1] = (runs[-1][0], max(runs[-1][1], last))
        else:
            runs.append((first, last))
    return runs


def _rows_of(parts: Range, rows: int, height: int) -> Range:
    return min(parts[0] * rows, height), min(parts[1] * rows, height)


def _height(shape: tuple[int, ...]) -> int:
    return shape[0] if shape else 1
