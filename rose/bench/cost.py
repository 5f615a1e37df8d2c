"""What a token costs on rented GPUs."""

import math
from dataclasses import dataclass

from rose.errors import ConfigError

_SECONDS_PER_HOUR = 3600
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """The rent of a deployment. gpu_hour_usd: dollars for one GPU and hour; `ConfigError` if it cannot be."""

    gpu_hour_usd: float
    num_gpus: int

    def __post_init__(self) -> None:
        if not 0 <= self.gpu_hour_usd < math.inf:
            raise ConfigError(f"a GPU's hour costs 0 dollars or more, not {self.gpu_hour_usd}")

    @property
    def usd_per_s(self) -> float:
        """Dollars for each second of all GPUs."""
        return self.gpu_hour_usd * self.num_gpus / _SECONDS_PER_HOUR

    def usd_per_million(self, num_tokens: float, seconds: float) -> float:
        """Dollars for a million tokens, at the pace of `num_tokens` in `seconds`, the GPUs doing nothing else.

        For input tokens: those of the prompts, over the time to the first token. For output tokens: one for each
        request, over a decode step; the prompts' cost is not in it.
        """
        return self.usd_per_s * seconds / num_tokens * _MILLION
