"""The loop of a conversion: read slices, change their format, write rows, account for what is done."""

import hashlib
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest

import torch
from torch import Tensor

from rose.errors import CheckpointError
from rose.layers.parameter import Parameter
from rose.models.plan import Destination
from rose.models.weight_map import StoredTensor, WeightRule
from rose.numerics.loss import Loss
from rose.weights.jobs import Job, cut_into_jobs, describe_sources
from rose.weights.journal import Journal
from rose.weights.lanes import Lanes
from rose.weights.manifest import Account
from rose.weights.safetensors_header import TORCH_DTYPES
from rose.weights.shard_writer import ShardWriter
from rose.weights.source import LoadTimes, WeightSource

Progress = Callable[[int, int], None]

# Less than the loader's: floats of a slice and their copies are in memory as well.
_JOB_BYTES = 24 << 20
# Tensors that are hashed and written at a time.
_MAX_LANES = 4


class Conversion:
    """Of one source into the shards of one folder, as far as its journal does not have it."""

    def __init__(
        self,
        source: WeightSource,
        destination: Destination,
        rules: Sequence[WeightRule],
        parameters: Mapping[str, Parameter],
        device: torch.device,
        writer: ShardWriter,
        journal: Journal,
    ) -> None:
        self._source = source
        self._rules = rules
        self._parameters = parameters
        self._device = device
        self._writer = writer
        self._journal = journal
        self._stored_of: dict[str, list[StoredTensor]] = defaultdict(list)
        for tensor in destination.tensors:
            self._stored_of[tensor.parameter].append(tensor)
        self._hashes = {name: hashlib.sha256() for name in source.tensors}
        self._losses: dict[int, Loss | None] = {}
        self._done_bytes = 0  # of what is read, those of which everything is written
        self._counting = threading.Lock()

    def run(self, progress: Progress | None, commit_bytes: int) -> None:
        """Do every rule that the journal does not have.

        Hashing takes longest, and goes from a tensor's beginning to its end; so several tensors are done at a time,
        piece by piece in turn, each in a lane of its own.
        """
        with Lanes(min(_MAX_LANES, os.cpu_count() or 1)) as lanes:
            spans = list(self._spans(lanes.count, commit_bytes))
            total = self._source.num_bytes
            self._done_bytes = total - sum(job.num_bytes for span in spans for _, _, job in span)
            report = progress or (lambda done, total: None)
            report(self._done_bytes, total)
            for span in spans:
                # Read as a whole: what is wrong with floats on a GPU is told at the end, and must be before the commit.
                batches = self._source.stream([job.slices for _, _, job in span], self._device, LoadTimes())
                for (lane, number, job), sources in zip(span, batches, strict=True):
                    targets = self._transform(number, job, sources)
                    # Copies, as the source uses its memory again for the next batch.
                    copies = [tensor.to("cpu", copy=True) for tensor in sources]
                    lanes.submit(lane, self._keep, job, copies, targets)
                    report(self._done_bytes, total)
                lanes.wait()
                report(self._done_bytes, total)
                self._commit()

    def _spans(self, num_lanes: int, commit_bytes: int) -> Iterator[list[tuple[int, int, Job]]]:
        """What is done between two entries of the journal: groups of together so many bytes or a little more."""
        span: list[tuple[int, int, Job]] = []
        for group in self._groups(num_lanes):
            span += group
            if sum(job.num_bytes for _, _, job in span) >= commit_bytes:
                yield span
                span = []
        if span:
            yield span

    def _groups(self, num_lanes: int) -> Iterator[list[tuple[int, int, Job]]]:
        """What is to be done: lane, rule's number and job. When a group is done, every tensor it began is complete."""
        # Rules that fill parts of one parameter are done one after the other.
        chains: list[list[int]] = []
        chain_of: dict[str, list[int]] = {}
        for number, rule in enumerate(self._rules):
            if number in self._journal.done:
                continue
            chain = next((chain_of[name] for name in rule.targets if name in chain_of), None)
            if chain is None:
                chains.append(chain := [])
            chain.append(number)
            chain_of |= dict.fromkeys(rule.targets, chain)
        # Neighbours take equally long: of a layer's own, one lane would hash gate_up while the others are done.
        chains.sort(key=self._num_source_bytes, reverse=True)
        for first in range(0, len(chains), num_lanes):
            lanes = [
                [(lane, number, job) for number in chain for job in self._jobs(self._rules[number])]
                for lane, chain in enumerate(chains[first : first + num_lanes])
            ]
            yield [step for steps in zip_longest(*lanes) for step in steps if step is not None]

    def _num_source_bytes(self, chain: Sequence[int]) -> int:
        return sum(
            self._source.tensors[source.name].num_bytes for number in chain for source in self._rules[number].sources
        )

    def _jobs(self, rule: WeightRule) -> Iterator[Job]:
        shapes = [self._section(rule, name)[1] for name in rule.targets]
        return cut_into_jobs(rule, self._source.tensors, shapes, job_bytes=_JOB_BYTES)

    def _section(self, rule: WeightRule, name: str) -> tuple[int, tuple[int, ...]]:
        """First row, in the parameter, of what the rule fills, and its shape."""
        parameter = self._parameters[name]
        if rule.section is None:
            return 0, tuple(parameter.shape)
        start, length = parameter.shard.section_range(rule.section)
        return start, (length, *parameter.shape[1:])

    def _keep(self, job: Job, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        """Hash what was read, in this order of a tensor's rows; hash and write what it became."""
        for part, tensor in zip(job.slices, sources, strict=True):
            self._hashes[part.name].update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        self._save(job, targets)
        with self._counting:
            self._done_bytes += job.num_bytes

    def _transform(self, number: int, job: Job, sources: Sequence[Tensor]) -> list[Tensor]:
        """The job's rows of each target, on the CPU, in the dtype they are stored in."""
        targets = []
        for name, (start, stop) in zip(job.rule.targets, job.target_rows, strict=True):
            shape = (stop - start, *self._parameters[name].shape[1:]) if self._parameters[name].dim() else ()
            dtype = TORCH_DTYPES[self._stored_of[name][0].dtype]
            targets.append(torch.empty(shape, dtype=dtype, device=self._device))
        try:
            job.rule.transform.fill(targets, sources)
            loss = job.rule.transform.loss(targets, sources)
        except ValueError as error:
            raise CheckpointError(f"cannot convert {describe_sources(job, self._source.tensors)}: {error}") from error
        before = self._losses.get(number)
        self._losses[number] = loss if before is None or loss is None else before + loss
        return [target.cpu() for target in targets]

    def _save(self, job: Job, targets: Sequence[Tensor]) -> None:
        for name, (first, last), rows in zip(job.rule.targets, job.target_rows, targets, strict=True):
            offset, _ = self._section(job.rule, name)
            first, last = first + offset, last + offset
            for stored in self._stored_of[name]:
                start, length = self._rows_of(stored)
                low, high = max(first, start), min(last, start + length)
                if low < high:
                    part = rows[low - first : high - first] if rows.dim() else rows
                    self._writer.write(stored.name, low - start, part.transpose(-1, -2) if stored.transposed else part)

    def _rows_of(self, stored: StoredTensor) -> tuple[int, int]:
        """First row, in the parameter, of a tensor to be written, and the number of rows."""
        parameter = self._parameters[stored.parameter]
        if stored.section is None:
            return 0, parameter.shape[0] if parameter.dim() else 1
        return parameter.shard.section_range(stored.section)

    def _commit(self) -> None:
        """Record the rules done so far, once their data is on the disk."""
        self._writer.sync()
        accounts = {number: self._account(self._rules[number], loss) for number, loss in self._losses.items()}
        self._journal.add(accounts)
        self._losses.clear()

    def _account(self, rule: WeightRule, loss: Loss | None) -> Account:
        return Account(
            transform=rule.transform.name,
            sources={source.name: self._hashes[source.name].hexdigest() for source in rule.sources},
            targets={
                stored.name: self._writer.digest(stored.name)
                for name in rule.targets
                for stored in self._stored_of[name]
                if self._overlaps(rule, name, stored)
            },
            loss=loss,
        )

    def _overlaps(self, rule: WeightRule, name: str, stored: StoredTensor) -> bool:
        first, shape = self._section(rule, name)
        start, length = self._rows_of(stored)
        return first < start + length and start < first + (shape[0] if shape else 1)
