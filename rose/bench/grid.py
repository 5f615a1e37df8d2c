"""The points of a sweep, from a TOML file.

    [sweep]                                 # all of it optional
    out = "20b.jsonl"                       # beside the TOML file; by default its name with .jsonl
    timeout_s = 1800                        # for each point
    gpu_hour_price = 3.0                    # and every other key of the tables below, as a default for them

    [[prefill]]                             # flags of `rose bench prefill`, with underscores
    model = "gpt-oss-20b"
    load_format = "dummy"
    experts = ["mxfp4", "fp8"]              # a list is an axis: each of its values is tried with all others
    tensor_parallel_size = [1, 2]
    lengths = [8192, 32768]

    [[decode]]                              # flags of `rose bench decode`
    model = "gpt-oss-20b"
    context = 8192
    batches = [1, 8, 64]

A point is one value of every axis. Its order in the file is its order in time, the last axis changing fastest.
"""

import itertools
import json
import os
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rose.bench.results import Configuration
from rose.errors import ConfigError

PointKind = Literal["prefill", "decode"]
Value = str | int | float | bool

_ENGINE_KEYS = (
    "device",
    "dtype",
    "load_format",
    "experts",
    "dense",
    "tensor_parallel_size",
    "data_parallel_size",
    "enable_expert_parallel",
    "max_num_batched_tokens",
    "block_size",
    "gpu_memory_utilization",
    "cuda_graphs",
)
_OUTPUT_KEYS = ("gpu_hour_price", "label", "seed", "revision", "ceilings", "profile", "profile_dir", "profile_steps")
KEYS: Mapping[PointKind, tuple[str, ...]] = {
    "prefill": ("model", "lengths", "batch", "repeats", "warmup", *_ENGINE_KEYS, *_OUTPUT_KEYS),
    "decode": (
        "model",
        "context",
        "batches",
        "steps",
        "repeats",
        "warmup",
        "temperature",
        "context_fill",
        *_ENGINE_KEYS,
        *_OUTPUT_KEYS,
    ),
}
"""The flags that a point can set, by its command."""

# What a point of each kind cannot be without, and its axes' names in a result.
_REQUIRED: Mapping[PointKind, tuple[str, ...]] = {
    "prefill": ("model", "lengths"),
    "decode": ("model", "context", "batches"),
}
_POINT_NAMES = {"lengths": "length", "batches": "batch", "batch": "batch", "context": "context"}
_DEFAULT_TIMEOUT_S = 1800.0
_MAX_TIMEOUT_S = 7 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Point:
    """One value of every axis."""

    kind: PointKind
    flags: tuple[tuple[str, Value], ...]

    @property
    def key(self) -> str:
        """The same for the same flags, whatever their order; rows carry it, so that a sweep can be taken up again."""
        return json.dumps([self.kind, dict(sorted(self.flags))])

    @property
    def arguments(self) -> list[str]:
        """After `rose bench`."""
        flags = dict(self.flags)
        arguments = [self.kind, str(flags.pop("model"))]
        for name, value in flags.items():
            option = "--" + name.replace("_", "-")
            if value is True:
                arguments.append(option)
            elif value is False:
                arguments += ["--no-ceilings"] if name == "ceilings" else []
            else:
                arguments += [option, str(value)]
        return arguments

    @property
    def command(self) -> str:
        """What to type to measure this point alone."""
        return shlex.join(["rose", "bench", *self.arguments])

    @property
    def configuration(self) -> Configuration:
        """For the row of a point that never got to making one."""
        flags: dict[str, Any] = dict(self.flags)
        return Configuration(
            model=flags["model"],
            device=flags.get("device", "auto"),
            dtype=flags.get("dtype", "auto"),
            load_format=flags.get("load_format", "auto"),
            experts=flags.get("experts", "auto"),
            dense=flags.get("dense", "auto"),
            tensor_parallel_size=flags.get("tensor_parallel_size", 1),
            data_parallel_size=flags.get("data_parallel_size", 1),
            expert_parallel=flags.get("enable_expert_parallel", False),
            max_num_batched_tokens=flags.get("max_num_batched_tokens", 0),
            block_size=flags.get("block_size", 0),
            label=flags.get("label"),
        )

    @property
    def coordinates(self) -> dict[str, Any]:
        """For the `point` of such a row."""
        found: dict[str, Any] = {"batch": 1} if self.kind == "prefill" else {}
        return found | {_POINT_NAMES[name]: value for name, value in self.flags if name in _POINT_NAMES}


@dataclass(frozen=True, slots=True)
class Sweep:
    """A file of points, and where their rows go."""

    points: tuple[Point, ...]
    out: Path
    timeout_s: float


def read_sweep(path: Path) -> Sweep:
    """Read a sweep. Raises `ConfigError` that says what is wrong and where."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read a sweep from {path}: {error}") from error
    if unknown := tables.keys() - {"sweep", *KEYS}:
        raise ConfigError(f"{path}: [{min(unknown)}] is no table of a sweep; known are sweep, {', '.join(KEYS)}")
    shared = tables.get("sweep", {})
    if not isinstance(shared, dict):
        raise ConfigError(f"{path}: write [sweep], in one bracket, with keys below it")
    shared = dict(shared)
    out = Path(os.path.normpath(path.parent / str(shared.pop("out", path.with_suffix(".jsonl").name))))
    timeout_s = shared.pop("timeout_s", _DEFAULT_TIMEOUT_S)
    if type(timeout_s) not in (int, float) or not 0 < timeout_s <= _MAX_TIMEOUT_S:
        raise ConfigError(f"{path}: timeout_s must be seconds above 0, at most a week, got {timeout_s!r}")
    if unknown := shared.keys() - {name for names in KEYS.values() for name in names}:
        raise ConfigError(f"{path}: [sweep]: {min(unknown)} is no key of a sweep, and no flag of its commands")
    points = [point for kind in KEYS for point in _points(path, kind, tables.get(kind, []), shared)]
    if not points:
        raise ConfigError(f"{path} has no points: it needs a [[prefill]] or [[decode]] table")
    return Sweep(tuple(dict.fromkeys(points)), out, float(timeout_s))


def _points(path: Path, kind: PointKind, tables: Any, shared: Mapping[str, Any]) -> Iterator[Point]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{path}: write [[{kind}]], in two brackets: there may be several")
    for number, table in enumerate(tables, start=1):
        where = f"{path}: [[{kind}]] number {number}"
        values = {name: value for name, value in shared.items() if name in KEYS[kind]} | table
        if unknown := values.keys() - set(KEYS[kind]):
            raise ConfigError(f"{where}: {min(unknown)} is no flag of rose bench {kind}")
        for name in _REQUIRED[kind]:
            if name not in values:
                raise ConfigError(f"{where}: {name} is missing")
        yield from _product(where, kind, values)


def _product(where: str, kind: PointKind, values: Mapping[str, Any]) -> Iterator[Point]:
    axes = {name: value if isinstance(value, list) else [value] for name, value in values.items()}
    for name, axis in axes.items():
        if not axis or not all(isinstance(value, (str, int, float, bool)) for value in axis):
            raise ConfigError(f"{where}: {name} must be a text, a number, true or false, or a list of these")
        if name in _POINT_NAMES and not all(type(value) is int for value in axis):
            raise ConfigError(f"{where}: {name} must be a whole number, or a list of them")
        if name == "model" and not all(isinstance(value, str) and value[:1] not in ("", "-") for value in axis):
            raise ConfigError(f"{where}: model must be a model's name, or a list of them")
    for choice in itertools.product(*axes.values()):
        yield Point(kind, tuple(zip(axes, choice, strict=True)))
