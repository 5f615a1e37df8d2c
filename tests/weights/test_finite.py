"""The deferred search for NaN, as it is on a GPU; see `test_loader.py` for the one at once."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rose.errors import CheckpointError
from rose.weights import reading
from rose.weights.finite import FiniteCheck
from rose.weights.reading import ParallelReader
from rose.weights.safetensors_header import read_header
from rose.weights.source import LoadTimes, Slice

CPU = torch.device("cpu")
VALUES = {
    "a": torch.full((6, 3), 3e38),
    "b": torch.ones(4, 2, dtype=torch.bfloat16),
    "c": torch.tensor(float("-inf"), dtype=torch.float16),
    "d": torch.full((2, 8), 255, dtype=torch.uint8),
}


def test_the_answers_come_together():
    spoiled = torch.ones(2, 2)
    spoiled[1, 0] = float("nan")
    check = FiniteCheck({}, at_once=False)
    assert check.bad_slices() == []
    bad = [Slice("b", 2, 4), Slice("c", 0, 1)]
    check.look_at(Slice("a", 0, 6), VALUES["a"])
    check.look_at(Slice("b", 0, 2), VALUES["b"][:2])
    check.look_at(bad[0], spoiled)
    check.look_at(bad[1], VALUES["c"])
    check.look_at(Slice("d", 0, 2), VALUES["d"])
    assert check.bad_slices() == bad


def test_a_bad_slice_is_read_again_for_its_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All batches are handed out, as on a GPU, and the end says what was wrong."""
    spoiled = VALUES["b"].clone()
    spoiled[3, 1] = float("inf")
    path = tmp_path / "file.safetensors"
    save_file({"a": VALUES["a"], "b": spoiled}, path)
    tensors = {info.name: info for info in read_header(path)}
    batches = [[Slice("b", 0, 2), Slice("a", 0, 6)], [Slice("b", 2, 4)], [Slice("a", 0, 1)]]
    deferred = iter([False, True])
    monkeypatch.setattr(reading, "FiniteCheck", lambda known, at_once: FiniteCheck(known, at_once=next(deferred)))
    received = []
    message = r"file.safetensors: b holds inf at \[3, 1\]"
    with ParallelReader(tensors, CPU, LoadTimes()) as reader, pytest.raises(CheckpointError, match=message):
        for batch in reader.stream(batches):
            received.append([tensor.clone() for tensor in batch])
    assert len(received) == 3


def test_what_is_bad_only_on_a_device_is_told_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As when a file changes meanwhile: the model has what the first reading gave."""
    save_file(VALUES, tmp_path / "file.safetensors")
    tensors = {info.name: info for info in read_header(tmp_path / "file.safetensors")}
    part = Slice("b", 1, 3)
    monkeypatch.setattr(FiniteCheck, "bad_slices", lambda self: [] if self._at_once else [part])
    deferred = iter([False, True])
    monkeypatch.setattr(reading, "FiniteCheck", lambda known, at_once: FiniteCheck(known, at_once=next(deferred)))
    with (
        ParallelReader(tensors, CPU, LoadTimes()) as reader,
        pytest.raises(CheckpointError, match="b is not read twice"),
    ):
        list(reader.stream([[part]]))
