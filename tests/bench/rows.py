"""Canned results."""

from typing import Any

from rose.bench.results import Configuration, Result

MACHINE = {
    "device": "NVIDIA H200",
    "torch": "2.11.0",
    "triton": "3.6.0",
    "cuda": "13.0",
    "python": "3.12.3",
    "rose": "0.1.0",
    "git_revision": "0123456789abcdef0123456789abcdef01234567",
    "git_dirty": False,
}
CEILINGS = {
    "device": "NVIDIA H200",
    "copy_bytes_per_s": 4.28e12,
    "gemms": [
        {"number_format": "bf16", "variant": "", "m": 8192, "n": 5120, "k": 2880, "flops_per_s": 672e12},
        {"number_format": "fp8", "variant": "one scale", "m": 8192, "n": 5120, "k": 2880, "flops_per_s": 1205e12},
    ],
}
EVEN = {"num_experts": 32, "used": 32.0, "expected_used": 32.0, "max_over_mean": 1.12}
COLLAPSED = {"num_experts": 32, "used": 5.0, "expected_used": 32.0, "max_over_mean": 7.9}


def row(
    kind: Any, experts: str, point: dict[str, Any], metrics: dict[str, Any], *, gpus: int = 1, **rest: Any
) -> Result:
    values: dict[str, Any] = {
        "machine": MACHINE,
        "ceilings": CEILINGS,
        "routing": EVEN,
        "date": "2026-01-31T12:00:00+00:00",
        "command": f"rose bench {kind} gpt-oss-20b --load-format dummy --experts {experts}",
    }
    configuration = Configuration(model="gpt-oss-20b", load_format="dummy", experts=experts, tensor_parallel_size=gpus)
    metrics = metrics | {"gpu_hour_usd": 3.0} if metrics else {}
    return Result(kind=kind, configuration=configuration, point=point, metrics=metrics, **(values | rest))


def prefill_row(experts: str, length: int, ttft_s: float, *, gpus: int = 1, **rest: Any) -> Result:
    metrics = {
        "ttft_s": ttft_s,
        "ttft_min_s": ttft_s * 0.99,
        "ttft_max_s": ttft_s * 1.02,
        "input_tokens_per_s": length / ttft_s,
        "usd_per_million_input_tokens": 3 * gpus / 3600 * ttft_s / length * 1e6,
    }
    floor = {"measured_over_floor": ttft_s / (0.04 * length / 8192)}
    return row("prefill", experts, {"length": length, "batch": 1}, metrics, gpus=gpus, **({"floor": floor} | rest))


def decode_row(experts: str, batch: int, step_ms: float, *, gpus: int = 1, **rest: Any) -> Result:
    metrics = {
        "step_ms": step_ms,
        "step_p99_ms": step_ms * 1.1,
        "tokens_per_s_per_user": 1e3 / step_ms,
        "tokens_per_s": 1e3 * batch / step_ms,
        "usd_per_million_output_tokens": 3 * gpus / 3600 * step_ms / 1e3 / batch * 1e6,
        "host_gap_ms": 0.05,
        "schedule_ms": 0.02,
    }
    floor = {"measured_over_floor": step_ms / 0.91}
    point = {"context": 8192, "batch": batch, "temperature": 1.0, "context_fill": "random"}
    return row("decode", experts, point, metrics, gpus=gpus, **({"floor": floor} | rest))


def all_rows() -> list[Result]:
    """Two configurations, one of them on two GPUs, and every way not to count."""
    collapsed = "the router collapsed"
    return [
        prefill_row("mxfp4", 8192, 0.121),
        prefill_row("mxfp4", 32768, 0.619),
        prefill_row("fp8", 8192, 0.062, gpus=2),
        prefill_row("fp8", 32768, 0.335, gpus=2),
        row("prefill", "fp8", {"length": 128000, "batch": 1}, {}, gpus=2, status="unfit", reason="out of memory"),
        decode_row("mxfp4", 1, 3.012),
        decode_row("mxfp4", 8, 5.384),
        decode_row("mxfp4", 128, 15.70),
        decode_row("fp8", 1, 2.004, gpus=2),
        decode_row("fp8", 8, 0.5, gpus=2, status="invalid", reason=collapsed, routing=COLLAPSED),
        row(
            "decode",
            "fp8",
            {"context": 8192, "batch": 128},
            {},
            gpus=2,
            status="failed",
            reason="ended by SIGSEGV",
            machine={},
            ceilings=None,
            command="",
        ),
    ]
