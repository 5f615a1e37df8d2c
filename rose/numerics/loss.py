"""What a change of format costs: how many scale blocks kept every value, and the worst and usual error."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from rose.numerics.chunks import row_chunks
from rose.numerics.fp8 import block_max


@dataclass(frozen=True, slots=True)
class Loss:
    """The difference between values and what a format made of them; adds up over parts of a tensor.

    exact_blocks, inexact_blocks: groups of values with one scale that came back as they were, or not.
    max_abs_error: as it says. max_relative_error: over the values that are not zero; 1 for one that became zero.
    squared_error, squared_values: sums, for `rms_relative_error`.
    """

    exact_blocks: int = 0
    inexact_blocks: int = 0
    max_abs_error: float = 0.0
    max_relative_error: float = 0.0
    squared_error: float = 0.0
    squared_values: float = 0.0

    @property
    def rms_relative_error(self) -> float:
        """Root of the mean squared error, over that of the values."""
        return (self.squared_error / self.squared_values) ** 0.5 if self.squared_values else 0.0

    def __add__(self, other: "Loss") -> "Loss":
        return Loss(
            self.exact_blocks + other.exact_blocks,
            self.inexact_blocks + other.inexact_blocks,
            max(self.max_abs_error, other.max_abs_error),
            max(self.max_relative_error, other.max_relative_error),
            self.squared_error + other.squared_error,
            self.squared_values + other.squared_values,
        )

    def to_json(self) -> dict[str, Any]:
        """All fields, and `rms_relative_error`."""
        return {**asdict(self), "rms_relative_error": self.rms_relative_error}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Loss":
        """What `to_json` wrote."""
        return cls(**{key: value for key, value in values.items() if key != "rms_relative_error"})


def measure_loss(values: Tensor, restored: Tensor, block_shape: tuple[int, int]) -> Loss:
    """Compare two float32 tensors, [..., m, n].

    block_shape: rows and columns that share a scale; 0 stands for all of them.
    """
    m, n = values.shape[-2:]
    rows, columns = block_shape[0] or m, block_shape[1] or n
    height = math.prod(values.shape[:-1]) if rows == 1 else m  # rows by themselves may be of any matrix
    loss = Loss()
    for before, after in zip(values.reshape(-1, height, n), restored.reshape(-1, height, n), strict=True):
        for chunk in row_chunks(height, n, device=values.device, multiple=rows):
            loss += _measure_chunk(before[chunk], after[chunk], rows, columns)
    return loss


def _measure_chunk(values: Tensor, restored: Tensor, rows: int, columns: int) -> Loss:
    m, n = values.shape
    if torch.equal(values, restored):  # the usual case
        return Loss(exact_blocks=-(-m // rows) * -(-n // columns), squared_values=_sum_of_squares(values))
    error = (restored - values).abs()
    worst = block_max(error, rows, columns)
    inexact = int((worst > 0).sum())
    relative = torch.where(values == 0, 0.0, error / values.abs())
    return Loss(
        exact_blocks=worst.numel() - inexact,
        inexact_blocks=inexact,
        max_abs_error=float(error.max()),
        max_relative_error=float(relative.max()),
        squared_error=_sum_of_squares(error),
        squared_values=_sum_of_squares(values),
    )


def _sum_of_squares(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2
