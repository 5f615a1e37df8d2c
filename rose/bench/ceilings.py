"""What this machine reaches at the two things a model does: moving memory and multiplying matrices."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rose.bench.machine import device_name
from rose.bench.summary import median
from rose.bench.timing import time_device
from rose.log import get_logger
from rose.plan.machine import MachineRates

logger = get_logger(__name__)

# (rows, columns of the result, inner dimension). The first is gpt-oss's query, key, value projection of 8192 tokens.
_GPU_SHAPES = ((8192, 5120, 2880), (8192, 8192, 8192))
_CPU_SHAPES = ((512, 2048, 1024),)
_GPU_COPY_BYTES = 1 << 30
_CPU_COPY_BYTES = 1 << 26
_NUM_INPUT_SETS = 3  # taken in turn, so that no call finds its inputs in the cache
_FP8_CAPABILITY = (8, 9)


@dataclass(frozen=True, slots=True)
class GemmRate:
    """A product of [m, k] and [k, n]. number_format: `fp32`, `bf16`, `fp8`. variant: how it was scaled, if it was."""

    number_format: str
    variant: str
    m: int
    n: int
    k: int
    flops_per_s: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured rates. copy_bytes_per_s: read and written bytes together."""

    device: str
    copy_bytes_per_s: float
    gemms: tuple[GemmRate, ...]

    def best(self, number_format: str) -> float | None:
        """The best FLOP/s in this format, or None if it was not measured."""
        return max((g.flops_per_s for g in self.gemms if g.number_format == number_format), default=None)

    def to_dict(self) -> dict[str, Any]:
        """For a result's `ceilings`."""
        return dataclasses.asdict(self) | {"gemms": [dataclasses.asdict(gemm) for gemm in self.gemms]}

    def as_rates(self) -> MachineRates:
        """As the rates of a floor, for machines that have none in the table."""
        formats = dict.fromkeys(gemm.number_format for gemm in self.gemms)
        rates = {name: best for name in formats if (best := self.best(name)) is not None}
        return MachineRates(self.device, rates, self.copy_bytes_per_s, "measured ceilings")


def measure_ceilings(device: torch.device, *, is_quick: bool = False) -> Ceilings:
    """Measure. is_quick: only the model's own shape, fewer repeats. Takes 3 GiB of a GPU's memory, for a moment."""
    on_gpu = device.type == "cuda"
    shapes = (_GPU_SHAPES[:1] if is_quick else _GPU_SHAPES) if on_gpu else _CPU_SHAPES
    repeats = (10 if is_quick else 30) if on_gpu else 5
    gemms = [rate for shape in shapes for rate in _measure_gemms(shape, device, repeats)]
    ceilings = Ceilings(device_name(device), _measure_copy(device, repeats), tuple(gemms))
    if on_gpu:
        torch.cuda.empty_cache()
    return ceilings


def _measure_copy(device: torch.device, repeats: int) -> float:
    num_bytes = _GPU_COPY_BYTES if device.type == "cuda" else _CPU_COPY_BYTES
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / median(time_device(lambda _: target.copy_(source), device, repeats=repeats))


def _measure_gemms(shape: tuple[int, int, int], device: torch.device, repeats: int) -> list[GemmRate]:
    m, n, k = shape
    rates = []
    for number_format, variant, product in _products(shape, device):
        try:
            seconds = median(time_device(product, device, repeats=repeats))
        except RuntimeError as error:  # a variant that this build of torch does not have
            logger.warning("no ceiling for a %s GEMM (%s): %s", number_format, variant, error)
            continue
        rates.append(GemmRate(number_format, variant, m, n, k, 2 * m * n * k / seconds))
    return rates


def _products(shape: tuple[int, int, int], device: torch.device) -> Sequence[tuple[str, str, Callable[[int], Tensor]]]:
    """Format, variant and the product itself. Numbers are random: zeros would draw less power and run faster."""
    m, n, k = shape
    on_gpu = device.type == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    left = [torch.randn(m, k, device=device).to(dtype) for _ in range(_NUM_INPUT_SETS)]
    right = [torch.randn(n, k, device=device).to(dtype) for _ in range(_NUM_INPUT_SETS)]

    def multiply(index: int) -> Tensor:
        return torch.mm(left[index % _NUM_INPUT_SETS], right[index % _NUM_INPUT_SETS].t())

    products: list[tuple[str, str, Callable[[int], Tensor]]] = [("bf16" if on_gpu else "fp32", "", multiply)]
    if on_gpu and torch.cuda.get_device_capability(device) >= _FP8_CAPABILITY:
        products += _fp8_products(left, right)
    return products


def _fp8_products(left: list[Tensor], right: list[Tensor]) -> list[tuple[str, str, Callable[[int], Tensor]]]:
    left8 = [x.to(torch.float8_e4m3fn) for x in left]
    right8 = [x.to(torch.float8_e4m3fn) for x in right]
    device, m, n = left[0].device, left[0].shape[0], right[0].shape[0]

    def scaled(left_scale: Tensor, right_scale: Tensor) -> Callable[[int], Tensor]:
        def multiply(index: int) -> Tensor:
            a, b = left8[index % _NUM_INPUT_SETS], right8[index % _NUM_INPUT_SETS].t()
            return torch._scaled_mm(
                a, b, scale_a=left_scale, scale_b=right_scale, out_dtype=torch.bfloat16, use_fast_accum=True
            )

        return multiply

    one = torch.ones((), device=device)
    return [
        ("fp8", "one scale", scaled(one, one)),
        ("fp8", "a scale per row", scaled(torch.ones(m, 1, device=device), torch.ones(1, n, device=device))),
    ]
