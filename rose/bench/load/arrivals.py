"""When requests are sent, and what they say."""

import itertools
import math
import random

from rose.errors import ConfigError

# Short and common: one token each, with the space before, in large vocabularies.
_WORD_LIST = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city name team minute idea body back parent face level office door "
    "health person art war history party result change morning reason research girl guy moment air teacher force"
)
_WORDS = _WORD_LIST.split()


def poisson_arrivals(rate: float, count: int, rng: random.Random) -> list[float]:
    """Seconds from the start at which `count` requests are sent, `rate` a second on average, whatever the server does.

    The gaps are exponential. An infinite rate sends all at once. Raises `ConfigError` for a rate that cannot be.
    """
    if not rate > 0:
        raise ConfigError(f"a rate must be above 0 requests a second, got {rate}")
    if math.isinf(rate):
        return [0.0] * count
    return list(itertools.accumulate((rng.expovariate(rate) for _ in range(count - 1)), initial=0.0))[:count]


def random_words(count: int, rng: random.Random) -> str:
    """A prompt that no cache has seen: its first words are random as well."""
    return " ".join(rng.choices(_WORDS, k=count))
