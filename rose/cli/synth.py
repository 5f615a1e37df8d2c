"""`rose synth`: a checkpoint of a published shape, with made-up weights."""

from pathlib import Path
from typing import Literal

from rose.cli.interruption import told_to_go_on
from rose.cli.load_progress import load_progress
from rose.cli.loss_table import print_losses
from rose.cli.places import choose_device, new_checkpoint
from rose.log import setup_logging


def synth(
    name: str,
    dst: Path,
    /,
    *,
    layers: int | None = None,
    seed: int = 0,
    layout: Literal["hf", "original", "rose"] = "hf",
    tokenizer: str | None = None,
    device: Literal["cpu", "cuda"] = "cpu",
) -> None:
    """Write a checkpoint of a published shape with made-up weights: MXFP4 experts, the rest in bfloat16.

    Parameters
    ----------
    name
        gpt-oss-20b, gpt-oss-120b, or a checkpoint whose config.json gives the shape.
    dst
        The folder to make.
    layers
        This many layers instead of the published number.
    seed
        The same seed gives the same weights.
    layout
        Whose names and shapes.
    tokenizer
        A checkpoint whose tokenizer is copied, such as rose-demo; without one the checkpoint cannot be served.
    device
        Where the weights are drawn: cpu or cuda, which is faster and gives other weights for the same seed.

    """
    from rose.weights.convert import convert
    from rose.weights.resolve import resolve_checkpoint
    from rose.weights.synthetic import synthetic_source

    setup_logging("synth")
    chosen, folder = choose_device(device), new_checkpoint(dst)
    source = synthetic_source(name, num_layers=layers, seed=seed)
    other_files = resolve_checkpoint(tokenizer) if tokenizer is not None else None
    with told_to_go_on(), load_progress(name, verb="making") as progress:
        manifest = convert(source, folder, layout=layout, device=chosen, other_files=other_files, progress=progress)
    print_losses(manifest)
