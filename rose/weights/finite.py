"""Looking for NaN and infinity in the floats of a checkpoint as they are read.

One such number makes every answer NaN, and a request would be the first to notice. The narrower formats have codes and
scales that `WeightFormat.check` looks at; here are the plain floats.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from rose.errors import CheckpointError
from rose.weights.answers import Answers
from rose.weights.safetensors_header import TensorInfo
from rose.weights.source import Slice

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class FiniteCheck:
    """Looks at slices as they come.

    at_once: raise where one is bad. Otherwise the answers stay on the device until `bad_slices` asks for all of them,
    so that the host does not wait for each.
    """

    def __init__(self, tensors: Mapping[str, TensorInfo], *, at_once: bool) -> None:
        self._tensors = tensors
        self._at_once = at_once
        self._answers: Answers[Slice] = Answers()

    def look_at(self, part: Slice, values: Tensor) -> None:
        """A slice's values. Raises CheckpointError, with the position, if it is to be known at once."""
        if values.dtype not in _DTYPES:
            return
        if not self._at_once:
            self._answers.add(part, torch.isfinite(values).all())
        # The sum takes one pass at the speed of memory, and is finite unless a value is not (or the values are huge).
        elif not math.isfinite(values.sum().item()):
            self._look_closely(part, values)

    def bad_slices(self) -> list[Slice]:
        """Those with a number that is not finite; waits for the device, once."""
        return self._answers.unsound()

    def _look_closely(self, part: Slice, values: Tensor) -> None:
        bad = (~torch.isfinite(values.reshape(-1))).nonzero()
        if len(bad) == 0:
            return
        info, first = self._tensors[part.name], int(bad[0])
        row, *position = torch.unravel_index(bad[0], values.shape or (1,))
        where = [part.start + int(row), *map(int, position)]
        value = values.reshape(-1)[first].item()
        raise CheckpointError(f"{info.file}: {info.name} holds {value} at {where}, and no model computes with that")
