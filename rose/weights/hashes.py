"""Comparing the data of a converted checkpoint with the hashes in its manifest."""

import hashlib

import torch

from rose.errors import CheckpointError
from rose.weights.checkpoint import Checkpoint
from rose.weights.jobs import JOB_BYTES
from rose.weights.safetensors_header import TensorInfo
from rose.weights.source import LoadTimes, Slice


def check_hashes(checkpoint: Checkpoint) -> None:
    """Read every tensor. Raises CheckpointError for one that is not what was written, and without a manifest."""
    if checkpoint.manifest is None:
        raise CheckpointError(f"{checkpoint.folder} has no manifest of rose convert, and so no hashes to compare with")
    expected = {
        name: digest for account in checkpoint.manifest["ledger"] for name, digest in account["targets"].items()
    }
    slices = [part for info in checkpoint.tensors.values() for part in _slices(info)]
    hashes = {name: hashlib.sha256() for name in checkpoint.tensors}
    batches = checkpoint.stream([[part] for part in slices], torch.device("cpu"), LoadTimes())
    for part, (tensor,) in zip(slices, batches, strict=True):
        hashes[part.name].update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    for name, computed in hashes.items():
        if computed.hexdigest() != expected[name]:
            raise CheckpointError(f"{checkpoint.tensors[name].file}: the data of {name} is not what was written")


def _slices(info: TensorInfo) -> list[Slice]:
    rows = info.shape[0] if info.shape else 1
    step = max(1, JOB_BYTES // max(info.row_bytes, 1))
    return [Slice(info.name, start, min(start + step, rows)) for start in range(0, rows, step)]
