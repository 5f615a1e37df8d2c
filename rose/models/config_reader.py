"""Typed reading of a checkpoint's `config.json`: a bad value is a CheckpointError that names file and key."""

import math
import sys
from collections.abc import Mapping
from typing import Any

from rose.errors import CheckpointError

# Far above every size that a model has, and small enough to reckon and allocate with.
MAX_SIZE = 1 << 24


class ConfigReader:
    """Reads values of one JSON object. A key that is absent or null takes the default, or is an error without one.

    source: where the object stands, for messages.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = values
        self.source = source

    def get(self, key: str, default: Any) -> Any:
        """The value as it is; `default` when absent or null."""
        value = self.values.get(key)
        return default if value is None else value

    def error(self, key: str, wanted: str) -> CheckpointError:
        """The error that `key` is not `wanted`."""
        if self.values.get(key) is None:
            return CheckpointError(f"{self.source}: {key} is missing; it must be {wanted}")
        return CheckpointError(f"{self.source}: {key} must be {wanted}, got {self.values[key]!r}")

    def integer(self, key: str, *, default: int | None = None, at_most: int = MAX_SIZE) -> int:
        """A positive whole number."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(key, "a positive integer")
        if value > at_most:
            raise self.error(key, f"a positive integer of at most {at_most}")
        return value

    def number(
        self,
        key: str,
        *,
        above: float = -math.inf,
        at_least: float = -math.inf,
        at_most: float = sys.float_info.max,
        default: float | None = None,
    ) -> float:
        """A finite number within the bounds."""
        value = self.get(key, default)
        bound = (
            f" above {above:g}" if above > -math.inf else f" of at least {at_least:g}" if at_least > -math.inf else ""
        )
        if at_most < sys.float_info.max:
            bound += f", at most {at_most:g}"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(key, f"a number{bound}")
        # A whole number of JSON's may be one that no float comes near.
        if not (value > above and at_least <= value <= at_most and -value <= sys.float_info.max):
            raise self.error(key, f"a number{bound}")
        return float(value)

    def boolean(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """A token id or a list of them; empty when absent or null."""
        value = self.get(key, [])
        ids = value if isinstance(value, list) else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in ids):
            raise self.error(key, "a token id or a list of token ids")
        return tuple(ids)

    def section(self, key: str) -> "ConfigReader":
        """A reader of the JSON object under `key`."""
        value = self.values.get(key)
        if not isinstance(value, Mapping):
            raise self.error(key, "a JSON object")
        return ConfigReader(value, f"{self.source}: {key}")
