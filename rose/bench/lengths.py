"""Which lengths a latency benchmark measures: all that were asked for, or the defaults that the model has room for."""

from collections.abc import Callable, Sequence

from rose.errors import ConfigError
from rose.log import get_logger

logger = get_logger(__name__)


def choose_lengths(
    option: str,
    given: Sequence[int] | None,
    defaults: Sequence[int],
    *,
    max_position: int | None,
    needed: Callable[[int], int],
) -> tuple[int, ...]:
    """The lengths in tokens that are measured.

    Of the defaults those that fit; if none does, the first that fits of half the least, a quarter of it, and so on. A
    warning says so. option: its name, for messages. given: what the user asked for, or None. max_position: positions of
    the model, None if nobody knows. needed: positions that a request of a length comes to take, more for a longer one.
    Raises `ConfigError` for a length given that does not fit, and for a model so short that none does.
    """
    if given is not None:
        for length in given:
            if max_position is not None and needed(length) > max_position:
                raise ConfigError(
                    f"{option} {length} takes {needed(length)} positions in all, and the model has {max_position}"
                )
        return tuple(given)
    if max_position is None:
        return tuple(defaults)
    fitting = tuple(length for length in defaults if needed(length) <= max_position)
    length = min(defaults)
    while not fitting:
        length //= 2
        if length == 0:
            raise ConfigError(f"the model has {max_position} positions, too few for any {option}")
        fitting = (length,) if needed(length) <= max_position else ()
    if fitting != tuple(defaults):
        logger.warning(
            "the model has %d positions, too few for %s %s: measuring %s",
            max_position,
            option,
            ",".join(str(length) for length in defaults if length not in fitting),
            ",".join(map(str, fitting)),
        )
    return fitting
