"""Showing what a conversion lost, from its manifest."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from rose.cli.tables import table_console


def print_losses(manifest: Mapping[str, Any]) -> None:
    """Print a row for each kind of change, and for each tensor that lost something in a lossless kind of change."""
    console = table_console()
    table = Table("change", "tensors", "exact blocks", "inexact blocks", "max abs", "max relative", "RMS relative")
    for transform, losses in _by_transform(manifest).items():
        table.add_row(
            transform,
            str(len(losses)),
            f"{sum(loss['exact_blocks'] for loss in losses):,}",
            f"{sum(loss['inexact_blocks'] for loss in losses):,}",
            f"{max(loss['max_abs_error'] for loss in losses):.3g}",
            f"{max(loss['max_relative_error'] for loss in losses):.3g}",
            f"{max(loss['rms_relative_error'] for loss in losses):.3g}",
        )
    if table.row_count:
        console.print(table)
    files = manifest["files"]
    num_bytes = sum(file["bytes"] for file in files.values())
    formats = manifest["formats"]
    console.print(
        f"{manifest['layout']} layout, experts {formats['experts']}, dense {formats['dense']}: {num_bytes:,} bytes in "
        f"{len(files)} file(s)"
    )


def _by_transform(manifest: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    losses: dict[str, list[Mapping[str, Any]]] = {}
    for account in manifest["ledger"]:
        if account["loss"] is not None:
            losses.setdefault(account["transform"], []).append(account["loss"])
    return losses
