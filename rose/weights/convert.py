"""From one checkpoint to another, tensor by tensor, with an account of every one.

Everything is written into `<folder>.partial`, which has no config.json and so cannot be loaded, with a journal of what
is safely on the disk. config.json is written last, and then the folder gets its name. An interrupted conversion goes on
from its journal when it is started again.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rose import __version__
from rose.errors import CheckpointError
from rose.layers.parameter import Parameter
from rose.models.registry import plan_model
from rose.models.weight_map import WeightFormats, WeightRule
from rose.weights.conversion import Conversion, Progress
from rose.weights.journal import Journal
from rose.weights.ledger import find_problems, summarize_problems
from rose.weights.loader import FormatChoice, check_choices
from rose.weights.manifest import make_manifest
from rose.weights.partial_folder import check_space, finish, partial_folder
from rose.weights.shard_writer import MAX_SHARD_BYTES, ShardPlan, ShardWriter, plan_shards
from rose.weights.source import WeightSource

# Read between two entries of the journal, and at least what the lanes are at: what an interruption may cost.
_COMMIT_BYTES = 1 << 30


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
    shards = plan_shards(destination.tensors, max_bytes=max_shard_bytes)
    with partial_folder(folder) as partial:
        check_space(partial, shards)
        job = _identify(source, layout, formats, shards, rules, device)
        parameters = {name: p for name, p in model.named_parameters() if isinstance(p, Parameter)}
        with Journal(partial, job) as journal, ShardWriter(partial, shards) as writer:
            conversion = Conversion(source, destination, rules, parameters, torch.device(device), writer, journal)
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
        finish(partial, folder, destination.config, shards, manifest, other_files)
    return manifest


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
