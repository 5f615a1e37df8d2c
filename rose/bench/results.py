"""The rows that benchmarks write: one JSON object a line, with all that is needed to repeat and to judge it."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from rose.errors import ConfigError, RoseError

Kind = Literal["prefill", "decode", "serve", "ceilings"]
Status = Literal["ok", "invalid", "unfit", "failed"]

# What a row's point must have to be shown; numbers of tokens or requests.
_AXES: Mapping[Kind, tuple[str, ...]] = {
    "prefill": ("length", "batch"),
    "decode": ("context", "batch"),
    "serve": ("input_len", "output_len"),
    "ceilings": (),
}


class PointFailed(RoseError):
    """A point of a benchmark could not be measured. The text says why."""


class DoesNotFit(PointFailed):
    """The point needs more memory than there is. The text says how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What was measured: a model and how it was asked to run; what `auto` came to is in a result's `machine`.

    The fields are those of `EngineConfig`. label: a name of the user's choice, else one is made of the other fields.
    """

    model: str
    device: str = "auto"
    dtype: str = "auto"
    load_format: str = "auto"
    experts: str = "auto"
    dense: str = "auto"
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    expert_parallel: bool = False
    max_num_batched_tokens: int = 0
    block_size: int = 0
    label: str | None = None

    @property
    def num_gpus(self) -> int:
        """Devices in all."""
        return self.tensor_parallel_size * self.data_parallel_size

    @property
    def model_name(self) -> str:
        """The last part of the model's path or id."""
        return Path(self.model).name

    @property
    def name(self) -> str:
        """For tables and legends, beside the model's name."""
        if self.label:
            return self.label
        parts = [f"TP{self.tensor_parallel_size}"]
        if self.data_parallel_size > 1:
            parts.append(f"DP{self.data_parallel_size}")
        if self.expert_parallel:
            parts.append("EP")
        parts += [self.experts] if self.experts != "auto" else []
        parts += [f"dense {self.dense}"] if self.dense != "auto" else []
        parts += [self.dtype] if self.dtype != "auto" else []
        parts += [f"step {self.max_num_batched_tokens}"] if self.max_num_batched_tokens else []
        parts += [f"block {self.block_size}"] if self.block_size else []
        return " ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One row.

    status: `ok`; `invalid`: measured, but not to be quoted, for `reason`; `unfit`: too large for the memory; `failed`.
    point: what was varied (length, batch, context, rate ...). metrics: what was measured; names end in their unit.
    routing, floor, ceilings: see `rose.bench.routing`, `rose.bench.floor`, `rose.bench.ceilings`; None if not known.
    machine: see `rose.bench.machine`. command: repeats the measurement. date: UTC, ISO 8601.
    sweep_point: which point of a sweep it is, see `rose.bench.grid`.
    """

    kind: Kind
    status: Status = "ok"
    reason: str | None = None
    configuration: Configuration
    point: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    routing: dict[str, Any] | None = None
    floor: dict[str, Any] | None = None
    ceilings: dict[str, Any] | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    command: str = ""
    date: str = ""
    sweep_point: str | None = None

    @property
    def is_quotable(self) -> bool:
        """Whether the row may be compared with others."""
        return self.status == "ok"

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Result":
        """The row that `to_json` wrote. Raises ValueError."""
        values = json.loads(text)
        try:
            row = msgspec.convert(values, cls)
            _refuse_unknown(values, cls)
            _refuse_unknown(values["configuration"], Configuration)
        except msgspec.ValidationError as error:
            raise ValueError(f"not a row of a benchmark: {error}") from error
        for name in _AXES[row.kind]:
            if type(row.point.get(name)) is not int:
                raise ValueError(f"not a row of a benchmark: its point has no whole number as {name}")
        return row


def append_results(path: Path, results: Iterable[Result]) -> None:
    """Add rows to a file, each with one write, so that an interrupted run leaves whole lines.

    An unfinished last line is removed. With no rows this makes the file, if it can be written. Raises `ConfigError`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_last_line(path)
        with path.open("a", encoding="utf-8") as file:
            for result in results:
                file.write(result.to_json() + "\n")
                file.flush()
    except OSError as error:
        raise ConfigError(f"cannot write results to {path}: {error}") from error


def read_results(paths: Iterable[Path]) -> list[Result]:
    """The rows of several files, in order, without what a machine that went down left of a last line.

    Raises `ConfigError` that names file and line.
    """
    results = []
    for path in paths:
        try:
            lines = path.read_bytes().split(b"\n")
        except OSError as error:
            raise ConfigError(f"cannot read results from {path}: {error}") from error
        if not _is_json(lines[-1]):
            lines.pop()
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                results.append(Result.from_json(line))
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{path}, line {number}: {error}") from error
    return results


def _end_last_line(path: Path) -> None:
    """Remove an unfinished last line, or end it if only its end is missing."""
    if not path.is_file():
        return
    with path.open("r+b") as file:
        data = file.read()
        last = data[data.rfind(b"\n") + 1 :]
        if _is_json(last):
            file.write(b"\n")
        elif last:
            file.truncate(len(data) - len(last))


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_unknown(values: Mapping[str, Any], cls: type[Any]) -> None:
    unknown = values.keys() - {field.name for field in dataclasses.fields(cls)}
    if unknown:
        raise msgspec.ValidationError(f"{min(unknown)} is not known")
