"""One loaded configuration, and the rows that are measured on it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rose.bench.ceilings import Ceilings, measure_ceilings
from rose.bench.cost import Price
from rose.bench.floor import compare, formats_of, parallelism_of, rates_for, shape_of
from rose.bench.machine import describe_machine, device_name, find_device, utc_now
from rose.bench.results import Configuration, DoesNotFit, Kind, PointFailed, Result
from rose.bench.rig import Rig
from rose.bench.routing import RoutingReport
from rose.engine.config import EngineConfig
from rose.plan.machine import MachineRates
from rose.plan.roofline import NumberFormats, Parallelism, StepWork
from rose.plan.shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What all rows of a run share.

    gpu_hour_usd: dollars for a GPU and hour. command: what to type to repeat the run. revision: of the source, where
    there is no git. with_ceilings: measure the machine in the same run. profile_dir: profile each point, and write its
    Chrome trace there; profile_steps: decode steps in such a profile.
    """

    gpu_hour_usd: float = 3.0
    seed: int = 0
    command: str = ""
    revision: str | None = None
    with_ceilings: bool = True
    profile_dir: Path | None = None
    profile_steps: int = 4


class Session:
    """Measures the ceilings, then loads the model. `result` makes a row of what was measured."""

    def __init__(self, configuration: Configuration, config: EngineConfig, settings: RunSettings) -> None:
        """Raises `DoesNotFit`, `ConfigError`, `CheckpointError`."""
        self.settings = settings
        self.price = Price(settings.gpu_hour_usd, configuration.num_gpus)
        self.ceilings = _ceilings(config.device) if settings.with_ceilings else None
        self.rig = Rig.load(config)
        info = self.rig.worker.info
        self.configuration = configuration
        self.shape: ModelShape | None = shape_of(self.rig.worker.model)
        self.formats: NumberFormats = formats_of(configuration, info.dtype)
        self.parallelism: Parallelism = parallelism_of(configuration)
        self.rates: MachineRates | None = rates_for(device_name(self.rig.device), self.ceilings)
        self._machine = describe_machine(self.rig.device, settings.revision)
        tokens = self.rig.worker.config.max_num_batched_tokens
        self._machine["engine"] = msgspec.to_builtins(info) | {"max_num_batched_tokens": tokens}

    def result(
        self,
        kind: Kind,
        point: dict[str, Any],
        metrics: dict[str, Any],
        *,
        routing: RoutingReport | None,
        work: StepWork | None,
        measured_s: float,
    ) -> Result:
        """A measured row, which is invalid if its routing is not to be trusted."""
        reason = self._doubt(routing)
        return Result(
            kind=kind,
            status="ok" if reason is None else "invalid",
            reason=reason,
            configuration=self.configuration,
            point=point,
            metrics=metrics | {"gpu_hour_usd": self.settings.gpu_hour_usd},
            routing=None if routing is None else routing.to_dict(),
            floor=None if work is None else compare(work, self.rates, measured_s),
            **self._circumstances(),
        )

    def failure(self, kind: Kind, point: dict[str, Any], error: PointFailed) -> Result:
        """The row of a point that could not be measured."""
        return Result(
            kind=kind,
            status="unfit" if isinstance(error, DoesNotFit) else "failed",
            reason=str(error),
            configuration=self.configuration,
            point=point,
            **self._circumstances(),
        )

    def _circumstances(self) -> dict[str, Any]:
        return {
            "ceilings": None if self.ceilings is None else self.ceilings.to_dict(),
            "machine": self._machine,
            "seed": self.settings.seed,
            "command": self.settings.command,
            "date": utc_now(),
        }

    def _doubt(self, routing: RoutingReport | None) -> str | None:
        if routing is None:
            return None if self.shape is None else "the routing could not be observed"
        if routing.has_collapsed:
            return (
                f"the router collapsed: {routing.used:.1f} of {routing.num_experts} experts in use in a layer "
                f"and step, {routing.expected_used:.1f} expected; the worst layer has {routing.least_share:.0%} of "
                "what even routing gives"
            )
        return None


def _ceilings(device: str) -> Ceilings:
    return measure_ceilings(find_device(device), is_quick=True)
