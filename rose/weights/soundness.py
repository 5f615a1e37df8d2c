"""Looking for impossible values, such as NaN scales, in what the jobs of a load read. Plain floats: see `finite`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rose.errors import CheckpointError
from rose.weights.answers import Answers
from rose.weights.jobs import Job, describe_sources
from rose.weights.source import LoadTimes, WeightSource


class SoundnessCheck:
    """Looks at the tensors of jobs as they come.

    at_once: raise where something is wrong. Otherwise the answers stay on the device until `finish`, so that the host
    does not wait for each.
    """

    def __init__(self, source: WeightSource, *, at_once: bool) -> None:
        self._source = source
        self._at_once = at_once
        self._answers: Answers[Job] = Answers()

    def look_at(self, job: Job, sources: Sequence[Tensor]) -> None:
        """What a job reads. Raises CheckpointError, with file and position, if it is to be known at once."""
        if self._at_once:
            self._check(job, sources)
            return
        is_sound = job.rule.transform.is_sound(sources)
        if is_sound is not None:
            self._answers.add(job, is_sound)

    def finish(self) -> None:
        """Raise CheckpointError if anything was wrong; to say where, it is read again, on the CPU."""
        bad = self._answers.unsound()
        batches = self._source.stream([job.slices for job in bad], torch.device("cpu"), LoadTimes())
        for job, sources in zip(bad, batches, strict=True):
            self._check(job, sources)
            # A GPU found what a CPU does not: a file that changed meanwhile, or broken hardware.
            raise CheckpointError(f"{describe_sources(job, self._source.tensors)}: not read twice as the same")

    def _check(self, job: Job, sources: Sequence[Tensor]) -> None:
        try:
            job.rule.transform.check(sources)
        except ValueError as error:
            raise CheckpointError(f"cannot load {describe_sources(job, self._source.tensors)}: {error}") from error
