"""Questions about what is on a device, asked one by one and answered together."""

from typing import Generic, TypeVar

import torch
from torch import Tensor

Subject = TypeVar("Subject")


class Answers(Generic[Subject]):
    """Whether things are sound, as bools that stay on their device: the host does not wait for each."""

    def __init__(self) -> None:
        self._subjects: list[Subject] = []
        self._answers: list[Tensor] = []

    def add(self, subject: Subject, is_sound: Tensor) -> None:
        """is_sound: a bool of no dimensions."""
        self._subjects.append(subject)
        self._answers.append(is_sound)

    def unsound(self) -> list[Subject]:
        """Those that are not, in the order in which they were added; waits for the device, once."""
        if not self._answers:
            return []
        answers = torch.stack(self._answers).tolist()
        return [subject for subject, is_sound in zip(self._subjects, answers, strict=True) if not is_sound]
