"""The flags that the commands of `rose bench` share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from rose.cli.serve_flags import Count

_ENGINE = Group("Engine", sort_key=1)
_OUTPUT = Group("Output", sort_key=2)


def numbers(_type: Any, tokens: Any) -> tuple[float, ...]:
    """Read `1,2.5,4`."""
    text: str = tokens[0].value
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is no list of numbers such as 1,2.5,4") from None


def counts(_type: Any, tokens: Any) -> tuple[int, ...]:
    """Read `8192,32768` or `8K,32K`."""
    text: str = tokens[0].value
    unit_of = {"k": 1_000, "K": 1 << 10}
    try:
        return tuple(
            int(part[:-1]) * unit_of[part[-1]] if part[-1:] in unit_of else int(part) for part in text.split(",")
        )
    except ValueError:
        raise ValueError(f"{text!r} is no list of counts such as 8192,32768") from None


Counts = Annotated[tuple[int, ...], Parameter(converter=counts, n_tokens=1, negative=())]
Numbers = Annotated[tuple[float, ...], Parameter(converter=numbers, n_tokens=1, negative=())]


@dataclass(frozen=True, kw_only=True)
class BenchEngineFlags:
    """How the model runs."""

    device: Annotated[str, Parameter(group=_ENGINE, help="auto, cpu, cuda or cuda:N.")] = "auto"
    dtype: Annotated[str, Parameter(group=_ENGINE, help="auto, float32, bfloat16 or float16.")] = "auto"
    load_format: Annotated[
        str, Parameter(group=_ENGINE, help="auto reads the checkpoint; dummy makes random weights of its shapes.")
    ] = "auto"
    experts: Annotated[
        str, Parameter(group=_ENGINE, help="Format of the experts' weights: auto, bf16, fp8, fp8-block or mxfp4.")
    ] = "auto"
    dense: Annotated[
        str, Parameter(group=_ENGINE, help="Format of attention's and the unembedding's: auto, bf16, fp8, fp8-block.")
    ] = "auto"
    tensor_parallel_size: Annotated[
        int, Parameter(name=("--tensor-parallel-size", "--tp", "-tp"), group=_ENGINE, help="GPUs that share the model.")
    ] = 1
    data_parallel_size: Annotated[
        int, Parameter(name=("--data-parallel-size", "--dp", "-dp"), group=_ENGINE, help="Replicas of the model.")
    ] = 1
    enable_expert_parallel: Annotated[
        bool,
        Parameter(name=("--enable-expert-parallel", "-ep"), negative=(), group=_ENGINE, help="Spread whole experts."),
    ] = False
    max_num_batched_tokens: Annotated[
        Count, Parameter(group=_ENGINE, help="Tokens computed in one step; 0: as served.")
    ] = 0
    block_size: Annotated[int, Parameter(group=_ENGINE, help="Tokens in a block of the KV cache; 0: as served.")] = 0
    gpu_memory_utilization: Annotated[float, Parameter(group=_ENGINE, help="Share of a GPU's memory to use.")] = 0.9
    cuda_graphs: Annotated[str, Parameter(group=_ENGINE, help="auto, on or off.")] = "auto"


@dataclass(frozen=True, kw_only=True)
class BenchOutputFlags:
    """What is recorded, and where."""

    out: Annotated[Path | None, Parameter(group=_OUTPUT, help="Append the rows to this file, as JSON lines.")] = None
    gpu_hour_price: Annotated[float, Parameter(group=_OUTPUT, help="Dollars for one GPU and hour.")] = 3.0
    label: Annotated[
        str | None, Parameter(group=_OUTPUT, help="Name of the configuration in reports; made up otherwise.")
    ] = None
    seed: Annotated[int, Parameter(group=_OUTPUT, help="Of prompts, KV cache and random weights.")] = 0
    revision: Annotated[
        str | None, Parameter(group=_OUTPUT, help="Source revision to record where there is no git.")
    ] = None
    ceilings: Annotated[bool, Parameter(group=_OUTPUT, help="Measure the machine's ceilings in the same run.")] = True
    profile: Annotated[
        bool, Parameter(group=_OUTPUT, negative=(), help="Profile each point too: tables of kernels, Chrome traces.")
    ] = False
    profile_dir: Annotated[Path, Parameter(group=_OUTPUT, help="Where --profile writes.")] = Path("profiles")
    profile_steps: Annotated[int, Parameter(group=_OUTPUT, help="Decode steps in a profile.")] = 4


ContextFillFlag = Literal["random", "prefill"]
