"""What numbers of the command line may be."""

import math

from rose.errors import ConfigError


def require_positive(**values: int) -> None:
    """Raise `ConfigError` unless these options are at least 1."""
    require_at_least(1, **values)


def require_at_least(least: int, **values: float) -> None:
    """Raise `ConfigError` unless these options are finite and at least so much."""
    for name, value in values.items():
        if not least <= value < math.inf:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least {least}, got {value}")
