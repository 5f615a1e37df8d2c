"""From one checkpoint to another, tensor by tensor, with an account of every one.

Everything is written into `<folder>.partial`, which has no config.json and so cannot be loaded, with a journal of what
is safely on the disk. config.json is written last, and then the folder gets its name. An interrupted conversion goes on
from its journal when it is started again.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rose import __version__
from rose.errors import CheckpointError, ConfigError
from rose.layers.parameter import Parameter
from rose.models.plan import Destination
from rose.models.registry import plan_model
from rose.models.weight_map import StoredTensor, WeightFormats, WeightRule
from rose.numerics.loss import Loss
from rose.weights.durable import sync_folder, write_durably
from rose.weights.jobs import Job, cut_into_jobs, describe_sources
from rose.weights.journal import JOURNAL_NAME, Journal
from rose.weights.lanes import Lanes
from rose.weights.ledger import find_problems, summarize_problems
from rose.weights.loader import FormatChoice, check_choices
from rose.weights.manifest import MANIFEST_NAME, Account, make_manifest
from rose.weights.safetensors_header import TORCH_DTYPES
from rose.weights.shard_writer import MAX_SHARD_BYTES, ShardPlan, ShardWriter, plan_shards, write_index
from rose.weights.source import LoadTimes, WeightSource

Progress = Callable[[int, int], None]

# Less than the loader's: floats of a slice and their copies are in memory as well.
_JOB_BYTES = 24 << 20
# Read between two entries of the journal, and at least what the lanes are at: what an interruption may cost.
_COMMIT_BYTES = 1 << 30
# Tensors that are hashed and written at a time.
_MAX_LANES = 4
_LOCK_NAME = "lock"
# Beside the weights, what belongs to a checkpoint and is copied as it is.
_OTHER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "generation_config.json",
    "*.jinja",
    "LICENSE*",
    "USAGE_POLICY*",
)


def convert(
    source: WeightSource,
    folder: Path,
    *,
    experts: FormatChoice = "auto",
    dense: FormatChoice = "auto",
    layout: str = "rose",
    device: torch.device | str = "cpu",
    other_files: Path | None = None,
    progress: Progress | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    commit_bytes: int = _COMMIT_BYTES,
) -> dict[str, Any]:
    """Write `source` into `folder`, which must not exist, and return the manifest.

    experts, dense: formats to write; `auto` is as stored. layout: `hf`, `original` or `rose`. device: where formats are
    changed. other_files: a folder whose tokenizer and the like are copied. progress: called with the source's bytes
    that are converted and written, and those in all. commit_bytes: how much may have to be done again after an
    interruption.

    Takes about a gigabyte of memory, whatever the model's size. Raises ConfigError, also when a file cannot be
    written, CheckpointError, UnsupportedModel.
    """
    check_choices(experts, dense)
    plan = plan_model(source.config, source.tensors.keys(), str(source.config_path))
    stored = plan.stored
    formats = WeightFormats(
        stored.experts if experts == "auto" else experts, stored.dense if dense == "auto" else dense
    )
    destination = plan.destination(layout, formats)
    rules = plan.weight_rules(formats)
    model = plan.build(dtype=torch.bfloat16, formats=formats)
    assert isinstance(model, nn.Module)
    problems = find_problems(source.tensors, rules, model, source.name)
    if problems:
        raise CheckpointError(summarize_problems(problems))
    _check_absent(folder)
    shards = plan_shards(destination.tensors, max_bytes=max_shard_bytes)
    partial = folder.with_name(f"{folder.name}.partial")
    with _locked(partial), _told_as_config_error(partial):
        _check_absent(folder)  # once more: another conversion may have finished before this one had the lock
        _check_space(partial, shards)
        job = _identify(source, layout, formats, shards, rules, device)
        parameters = {name: p for name, p in model.named_parameters() if isinstance(p, Parameter)}
        with Journal(partial, job) as journal, ShardWriter(partial, shards) as writer:
            conversion = _Conversion(source, destination, rules, parameters, torch.device(device), writer, journal)
            conversion.run(progress, commit_bytes)
        if _identify(source, layout, formats, shards, rules, device) != job:
            raise CheckpointError(f"{source.name} changed while it was read; remove {partial} and convert it again")
        manifest = make_manifest(
            source={"name": source.name, "layout": plan.layout, "formats": _format_names(stored)},
            layout=layout,
            formats=_format_names(formats),
            headers=shards.headers,
            sizes=shards.sizes,
            accounts=[journal.done[number] for number in range(len(rules))],
            version=__version__,
        )
        _finish(partial, folder, destination, shards, manifest, other_files)
    return manifest


class _Conversion:
    """The loop: read slices, change their format, write rows; then account for what is done."""

    def __init__(
        self,
        source: WeightSource,
        destination: Destination,
        rules: Sequence[WeightRule],
        parameters: dict[str, Parameter],
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


def _check_absent(folder: Path) -> None:
    if os.path.lexists(folder):  # a link to nowhere as well
        raise ConfigError(f"{folder} exists already; remove it, or choose another folder")


@contextmanager
def _told_as_config_error(partial: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {partial}: {error}") from error


@contextmanager
def _locked(partial: Path) -> Iterator[None]:
    """Make the folder and keep other conversions out of it; if nothing came of it, remove it."""
    with _told_as_config_error(partial):
        partial.mkdir(parents=True, exist_ok=True)
        names = {file.name for file in partial.iterdir()}
        if names and not names & {_LOCK_NAME, JOURNAL_NAME}:
            raise ConfigError(f"{partial} is no unfinished conversion; remove it, or choose another folder")
        descriptor = os.open(partial / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink == 0:  # whoever held it has just finished and removed it
                raise BlockingIOError
        except BlockingIOError:
            raise ConfigError(f"another conversion is writing {partial}") from None
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                if [file.name for file in partial.iterdir()] == [_LOCK_NAME]:
                    (partial / _LOCK_NAME).unlink()
                    partial.rmdir()
    finally:
        os.close(descriptor)


def _check_space(partial: Path, shards: ShardPlan) -> None:
    needed = sum(shards.sizes.values())
    # Files of an earlier attempt have their length, but perhaps not yet their blocks.
    taken = sum(file.stat().st_blocks * 512 for file in partial.glob("*.safetensors"))
    free = shutil.disk_usage(partial).free
    if needed - taken > free:
        raise ConfigError(f"{partial} needs {(needed - taken) / 1e6:,.1f} MB, its disk has {free / 1e6:,.1f} MB free")


def _identify(
    source: WeightSource,
    layout: str,
    formats: WeightFormats,
    shards: ShardPlan,
    rules: Sequence[WeightRule],
    device: torch.device | str,
) -> dict[str, Any]:
    """What an unfinished conversion must have in common with one that goes on with it."""
    files = sorted({info.file for info in source.tensors.values() if info.file.is_file()})
    # The journal knows rules by their numbers.
    numbered = [[rule.targets, [tensor.name for tensor in rule.sources], rule.section] for rule in rules]
    return {
        "rose_version": __version__,
        "rules": hashlib.sha256(json.dumps(numbered).encode()).hexdigest(),
        "source": source.name,
        "files": [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files],
        # What is made up differs between kinds of devices; what is read does not.
        "drawn_on": None if files else torch.device(device).type,
        "layout": layout,
        "formats": _format_names(formats),
        "headers": {file: hashlib.sha256(header).hexdigest() for file, header in shards.headers.items()},
    }


def _format_names(formats: WeightFormats) -> dict[str, str]:
    return {"experts": formats.experts, "dense": formats.dense}


def _finish(
    partial: Path,
    folder: Path,
    destination: Destination,
    shards: ShardPlan,
    manifest: dict[str, Any],
    other_files: Path | None,
) -> None:
    """Write what makes a folder of tensors a checkpoint, and give it its name."""
    for pattern in _OTHER_FILES if other_files is not None else ():
        assert other_files is not None
        for file in sorted(other_files.glob(pattern)):
            if file.is_file():
                shutil.copyfile(file, partial / file.name)
    write_index(partial, shards)
    write_durably(partial / MANIFEST_NAME, json.dumps(manifest, indent=2) + "\n")
    write_durably(partial / "config.json", json.dumps(destination.config, indent=2) + "\n")
    sync_folder(partial)
    partial.rename(folder)
    sync_folder(folder.parent)
    # Not before: interrupted between the two, the conversion would begin anew in a folder that has a config.json.
    (folder / JOURNAL_NAME).unlink()
    (folder / _LOCK_NAME).unlink()
