"""`rose convert`: a checkpoint in another layout or other number formats."""

from pathlib import Path
from typing import Literal

from rose.cli.interruption import told_to_go_on
from rose.cli.load_progress import load_progress
from rose.cli.loss_table import print_losses
from rose.cli.places import choose_device, new_checkpoint
from rose.log import setup_logging


def convert(
    src: str,
    dst: Path,
    /,
    *,
    experts: Literal["auto", "mxfp4", "fp8", "fp8-block", "bf16"] = "auto",
    dense: Literal["auto", "bf16", "fp8", "fp8-block"] = "auto",
    layout: Literal["rose", "hf", "original"] = "rose",
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> None:
    """Write a checkpoint in another layout or other number formats, with an account of every tensor.

    It is written into DST.partial, which gets its name when it is complete; the same command goes on where an
    interrupted one stopped. Memory does not grow with the model.

    Parameters
    ----------
    src
        A folder, a bundled name such as rose-demo, or a Hugging Face repository.
    dst
        The folder to make.
    experts
        The format of the experts' weights; auto is as stored. MXFP4 becomes fp8 without loss wherever it can.
    dense
        The format of attention's weights and the unembedding's; auto is as stored. To fp8 they are rounded.
    layout
        Whose names and shapes: rose's own, which holds every format; Hugging Face's; or OpenAI's original one.
    device
        Where formats are changed; auto is the GPU if there is one.

    """
    # These take a second to import, and a mistake in the options should not.
    from rose.weights.checkpoint import Checkpoint
    from rose.weights.convert import convert as convert_checkpoint
    from rose.weights.resolve import resolve_checkpoint

    setup_logging("convert")
    chosen, folder = choose_device(device), new_checkpoint(dst)
    checkpoint = Checkpoint(resolve_checkpoint(src))
    with told_to_go_on(), load_progress(src, verb="converting") as progress:
        manifest = convert_checkpoint(
            checkpoint,
            folder,
            experts=experts,
            dense=dense,
            layout=layout,
            device=chosen,
            other_files=checkpoint.folder,
            progress=progress,
        )
    print_losses(manifest)
