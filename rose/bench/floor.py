"""A measured time beside the least possible one."""

from typing import Any

from rose.bench.ceilings import Ceilings
from rose.bench.results import Configuration
from rose.models.gpt_oss.config import GptOssConfig
from rose.plan.machine import MachineRates, known_rates
from rose.plan.roofline import NumberFormats, Parallelism, StepWork
from rose.plan.shape import ModelShape

_FORMAT_OF_DTYPE = {"bfloat16": "bf16", "float16": "bf16", "float32": "fp32"}


def shape_of(model: object) -> ModelShape | None:
    """The sizes of a loaded model, or None if the arithmetic does not know its family."""
    config = getattr(model, "config", None)
    if not isinstance(config, GptOssConfig):
        return None
    return ModelShape(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_q_heads=config.num_q_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        layer_windows=config.layer_windows,
        num_experts=config.moe.num_experts,
        experts_per_token=config.moe.experts_per_token,
        intermediate_size=config.moe.intermediate_size,
    )


def formats_of(configuration: Configuration, dtype: str) -> NumberFormats:
    """The formats of a configuration's floor: the published ones, but for what the configuration sets.

    dtype: of activations, and so of the KV cache, and of dense weights with no format of their own. Products are
    counted at the machine's fastest rate in any case.
    """
    activations = _FORMAT_OF_DTYPE.get(dtype, "bf16")
    return NumberFormats(
        experts="mxfp4" if configuration.experts == "auto" else configuration.experts,
        dense=activations if configuration.dense == "auto" else configuration.dense,
        kv=activations,
    )


def parallelism_of(configuration: Configuration) -> Parallelism:
    """How a configuration spreads the model."""
    return Parallelism(
        tp=configuration.tensor_parallel_size,
        dp=configuration.data_parallel_size,
        expert_parallel=configuration.expert_parallel,
    )


def rates_for(device: str, ceilings: Ceilings | None) -> MachineRates | None:
    """Rates of the table for GPUs that it knows, else the measured ceilings."""
    return known_rates(device) or (None if ceilings is None else ceilings.as_rates())


def compare(work: StepWork, rates: MachineRates | None, measured_s: float) -> dict[str, Any] | None:
    """For a result's `floor`: the floor in seconds, measured / floor, and what went into it."""
    if rates is None:
        return None
    floor_s = work.floor_s(rates)
    return {
        "floor_s": floor_s,
        "measured_over_floor": measured_s / floor_s,
        "flops": work.flops,
        "bytes": work.num_bytes,
        "rates": f"{rates.name}: {rates.source}",
    }
