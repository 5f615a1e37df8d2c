"""Impossible values: found without waiting for a device, and told as precisely as where they are found at once."""

import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

from rose.errors import CheckpointError
from rose.models.weight_map import Recode
from rose.numerics import mxfp4
from rose.numerics.format import FORMAT_NAMES, get_format
from rose.weights import loader
from rose.weights.answers import Answers
from rose.weights.checkpoint import Checkpoint
from rose.weights.convert import convert
from rose.weights.loader import load_model
from rose.weights.soundness import SoundnessCheck
from tests.checkpoints import TinyShape, write_checkpoint

SHAPE = (3, 130, 64)


def parts_of(name):
    """A weight in a format."""
    values = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    return get_format(name).encode(values)


def empty(name):
    return [torch.empty(part.shape, dtype=part.dtype) for part in get_format(name).parts(SHAPE)]


def spoil(name, parts):
    """One impossible value."""
    if name == "bf16":
        parts[0][1, 2, 3] = math.inf
    elif name == "mxfp4":
        parts[1][1, 2, 1] = 255
    else:
        parts[1].view(-1)[1] = 3.0


class NoWaiting(TorchDispatchMode):
    """Fails where the host would have to wait for a GPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func not in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.is_nonzero.default,
            torch.ops.aten.nonzero.default,
            torch.ops.aten.masked_select.default,
            torch.ops.aten.equal.default,
        ), func
        return func(*args, **(kwargs or {}))


def test_waiting_is_noticed():
    with NoWaiting(), pytest.raises(AssertionError, match="_local_scalar_dense"):
        bool(torch.ones(3).any())


@pytest.mark.parametrize("target", FORMAT_NAMES)
@pytest.mark.parametrize("source", FORMAT_NAMES)
def test_every_transform_says_the_same_without_waiting(source, target, monkeypatch):
    transform = Recode(get_format(source), get_format(target))
    parts, targets = parts_of(source), empty(target)
    with NoWaiting(), monkeypatch.context() as as_on_a_gpu:
        as_on_a_gpu.setattr(mxfp4, "_may_ask", lambda device: False)
        sound = transform.is_sound(parts)
        transform.write(targets, parts)
    assert sound is None or (sound.shape == () and bool(sound))
    expected = empty(target)
    transform.fill(expected, parts)
    for part, other in zip(targets, expected, strict=True):
        assert torch.equal(part.view(torch.uint8), other.view(torch.uint8))
    spoil(source, parts)
    sound = transform.is_sound(parts)
    if source == target == "bf16":
        assert sound is None  # the reader looks at floats
        return
    assert not sound
    for call in (transform.check, lambda parts: transform.fill(targets, parts)):
        with pytest.raises(ValueError, match=r"NaN|powers of two"):
            call(parts)


def test_values_that_exceed_float32_are_refused():
    transform = Recode(get_format("fp8"), get_format("fp8-block"))
    parts = torch.full((1, 32), 448.0).to(torch.float8_e4m3fn), torch.tensor([2.0**127])
    assert not transform.is_sound(parts)
    with pytest.raises(ValueError, match="fp8-block cannot hold NaN or infinity"):
        transform.check(parts)


def test_answers_come_together():
    answers = Answers()
    assert answers.unsound() == []
    for number in range(6):
        answers.add(number, torch.tensor(number % 2 == 0))
    assert answers.unsound() == [1, 3, 5]


@pytest.mark.parametrize("stored", ["mxfp4", "fp8", "fp8-block"])
@pytest.mark.parametrize("wanted", ["mxfp4", "fp8", "bf16"])
def test_a_load_tells_the_same_at_the_end(stored, wanted, tmp_path, monkeypatch):
    """As on a GPU: everything is read, then what was wrong is read again. In jobs of an expert or some rows."""
    monkeypatch.setattr(loader, "JOB_BYTES", 1024)
    convert(Checkpoint(write_checkpoint(tmp_path / "source", TinyShape())), tmp_path / "out", experts=stored)
    (tmp_path / "out" / "manifest.json").unlink()  # its account of the file will not hold
    path = tmp_path / "out" / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("scales") and "down" in name)
    if stored == "mxfp4":
        tensors[name][2, 5, 1] = 255
    else:
        tensors[name][2, -1] = 3.0  # no power of two
    save_file(tensors, path)

    def refusal():
        reports = []
        with pytest.raises(CheckpointError) as caught:
            load_model(
                path.parent,
                device="cpu",
                dtype=torch.float32,
                experts=wanted,
                progress=lambda done, total: reports.append(done == total),
            )
        return str(caught.value), reports[-1]

    at_once, was_complete = refusal()
    assert not was_complete
    assert f"{name} in {path}" in at_once
    assert "from row 2" in at_once
    monkeypatch.setattr(loader, "SoundnessCheck", lambda source, at_once: SoundnessCheck(source, at_once=False))
    assert refusal() == (at_once, True)


def test_what_is_unsound_only_on_a_device_is_told_as_well(tmp_path, monkeypatch):
    """As when a file changes meanwhile: the model has what the first reading gave."""
    folder = write_checkpoint(tmp_path, TinyShape())
    monkeypatch.setattr(loader, "SoundnessCheck", lambda source, at_once: SoundnessCheck(source, at_once=False))
    monkeypatch.setattr(Recode, "is_sound", lambda self, sources: torch.tensor(False))
    with pytest.raises(CheckpointError, match=rf"in {folder}.*not read twice as the same"):
        load_model(folder, device="cpu", dtype=torch.float32)
