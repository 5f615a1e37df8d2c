"""`rose inspect`: what a checkpoint holds, and where each tensor goes."""

import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts
from rich.markup import escape
from rich.table import Table

from rose.cli.loss_table import print_losses
from rose.cli.streams import as_one_line
from rose.cli.tables import table_console
from rose.errors import CheckpointError

if TYPE_CHECKING:
    from rose.weights.checkpoint import Checkpoint
    from rose.weights.inventory import Inventory

# The imports inside the functions keep `rose --help` quick.


def inspect(
    model: str,
    /,
    *,
    as_json: Annotated[bool, cyclopts.Parameter(name="--json", negative="")] = False,
    hashes: Annotated[bool, cyclopts.Parameter(negative="")] = False,
) -> None:
    """Show a checkpoint's config, its tensors and the parameters they fill. Reads headers only.

    Parameters
    ----------
    model
        A folder, a bundled name such as rose-demo, or a Hugging Face repository.
    as_json
        Print one JSON object instead of tables.
    hashes
        Read every tensor of a converted checkpoint and compare it with the hash in its manifest.

    """
    from rose.weights.checkpoint import Checkpoint
    from rose.weights.hashes import check_hashes
    from rose.weights.inventory import take_inventory
    from rose.weights.resolve import resolve_checkpoint

    checkpoint = Checkpoint(resolve_checkpoint(model))
    if hashes:
        check_hashes(checkpoint)
    inventory = take_inventory(checkpoint)
    report = _report(checkpoint, inventory)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print_tables(report)
    if inventory.problems:
        raise CheckpointError(f"{checkpoint.folder} cannot be loaded: {len(inventory.problems)} problem(s), see above")


def _report(checkpoint: "Checkpoint", inventory: "Inventory") -> dict[str, Any]:
    bytes_of_dtype: Counter[str] = Counter()
    for entry in inventory.entries:
        bytes_of_dtype[entry.tensor.dtype] += entry.tensor.num_bytes
    return {
        "path": str(checkpoint.folder),
        "architecture": inventory.plan.architecture,
        "layout": inventory.plan.layout,
        "formats": asdict(inventory.plan.stored),
        "config": asdict(inventory.plan.config),
        "tensors": [
            {
                "name": entry.tensor.name,
                "dtype": entry.tensor.dtype,
                "shape": list(entry.tensor.shape),
                "bytes": entry.tensor.num_bytes,
                "file": entry.tensor.file.name,
                "destination": entry.destination,
                "transform": entry.transform,
            }
            for entry in inventory.entries
        ],
        "filled_parameters": [
            {
                "name": parameter.name,
                "dtype": parameter.dtype,
                "shape": list(parameter.shape),
                "sources": list(parameter.sources),
            }
            for parameter in inventory.parameters
        ],
        "manifest": checkpoint.manifest,
        "totals": {
            "parameters": inventory.plan.num_parameters,
            "quantized_parameters": 0 if inventory.plan.stored.experts == "bf16" else inventory.plan.num_expert_weights,
            "tensors": len(inventory.entries),
            "bytes": checkpoint.num_bytes,
            "bytes_by_dtype": dict(bytes_of_dtype),
            "files": len({entry.tensor.file for entry in inventory.entries}),
        },
        "problems": list(inventory.problems),
    }


def _print_tables(report: dict[str, Any]) -> None:
    console = table_console()
    console.print(f"{as_one_line(report['path'])}: {report['architecture']}", markup=False, soft_wrap=True)
    config = Table(show_header=False)
    for key, value in _flatten(report["config"]):
        config.add_row(key, _short(value))
    console.print(config)
    tensors = Table("tensor", "dtype", "shape", "bytes", "fills", "by")
    for column in tensors.columns:
        column.overflow = "fold"  # a name cut short is of no use
    for tensor in report["tensors"]:
        fills = escape(tensor["destination"]) if tensor["destination"] else "[red]nothing[/red]"
        shape = " × ".join(map(str, tensor["shape"]))
        name = escape(as_one_line(tensor["name"]))
        tensors.add_row(name, tensor["dtype"], shape, f"{tensor['bytes']:,}", fills, tensor["transform"])
    console.print(tensors)
    formats = report["formats"]
    console.print(f"{report['layout']} layout, experts {formats['experts']}, dense {formats['dense']}")
    if report["manifest"] is not None:
        source = report["manifest"]["source"]
        console.print(f"converted from {source['name']}, its tensors' SHA-256 {source['sha256']}", markup=False)
        print_losses(report["manifest"])
    totals = report["totals"]
    by_dtype = ", ".join(f"{dtype} {num_bytes:,}" for dtype, num_bytes in totals["bytes_by_dtype"].items())
    console.print(
        f"{totals['parameters']:,} parameters, {totals['quantized_parameters']:,} of them quantized; "
        f"{totals['tensors']} tensors in {totals['files']} file(s), {totals['bytes']:,} bytes ({by_dtype})"
    )
    for problem in report["problems"]:
        console.print(f"problem: {as_one_line(problem)}", style="red", markup=False, soft_wrap=True)


def _flatten(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in values.items():
        rows += _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return rows


def _short(value: Any) -> str:
    """A value in one cell; the layers' windows alternate, so a few of them tell the rest."""
    if isinstance(value, (list, tuple)):
        shown = ", ".join("full" if item is None else str(item) for item in value[:6])
        return f"{shown}, … ({len(value)})" if len(value) > 6 else shown
    return str(value)
