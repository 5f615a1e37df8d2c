"""What is told of a list of measurements."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Summary:
    """Of at least one measurement, in its unit. std: of the sample itself (divided by n, as NumPy does)."""

    count: int
    mean: float
    median: float
    std: float
    minimum: float
    maximum: float
    p90: float
    p95: float
    p99: float


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the measurements lie, interpolated linearly between neighbours.

    Definition 7 of Hyndman and Fan (1996), NumPy's default. NaN of no values.
    """
    if not values:
        return math.nan
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(values: Sequence[float]) -> float:
    """The middle value, or halfway between the two in the middle."""
    return percentile(values, 50)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; NaN of no values."""
    return math.fsum(values) / len(values) if values else math.nan


def summarize(values: Sequence[float]) -> Summary:
    """All of it at once; every number is NaN if there are no values."""
    average = mean(values)
    variance = mean([(value - average) ** 2 for value in values])
    return Summary(
        count=len(values),
        mean=average,
        median=median(values),
        std=math.sqrt(variance),
        minimum=min(values, default=math.nan),
        maximum=max(values, default=math.nan),
        p90=percentile(values, 90),
        p95=percentile(values, 95),
        p99=percentile(values, 99),
    )
