"""What a GPU can do: the rates that floors are computed with."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class MachineRates:
    """Rates of one GPU (or of a CPU).

    flops_per_s: matrix products, by number format (`fp8`, `bf16`, `fp32`). bytes_per_s: main memory.
    source: where the rates come from, for reports.
    """

    name: str
    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    source: str

    def gemm_rate(self, number_format: str) -> float:
        """FLOP/s in this format, or in the fastest one the machine has if it lacks this one."""
        return self.flops_per_s.get(number_format) or max(self.flops_per_s.values())


# 80 % of the data sheet's 989 and 1979 TFLOP/s, more than the best library kernels sustain under the power limit, and
# 90 % of its 4.8 TB/s, which a copy reaches. `rose bench ceilings` measures what kernels reach.
H200 = MachineRates(
    name="NVIDIA H200",
    flops_per_s=MappingProxyType({"bf16": 790e12, "fp8": 1580e12}),
    bytes_per_s=4.3e12,
    source="80 % of peak FLOP/s, 90 % of peak bandwidth",
)
_KNOWN = (H200,)


def known_rates(device_name: str) -> MachineRates | None:
    """The rates of a GPU by the name its driver gives, or None for one not in the table."""
    return next((rates for rates in _KNOWN if device_name.startswith(rates.name)), None)
