"""The flags of `rose serve`, with other servers' spellings for them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

_SERVER = Group("Server", sort_key=1)
_API = Group("API", sort_key=2)
_ENGINE = Group("Engine", sort_key=3)
_COMPATIBLE = Group(
    "Accepted from other servers' command lines, without effect here",
    sort_key=4,
    default_parameter=Parameter(show_default=False),
)


def count(_type: Any, tokens: Any) -> int:
    """Read `4096`, `128k` (thousands) or `128K` (1024s), as other servers do."""
    text: str = tokens[0].value
    unit = {"k": 1_000, "K": 1 << 10, "m": 1_000_000, "M": 1 << 20}.get(text[-1:], 1)
    digits = text[:-1] if unit > 1 else text
    try:
        number = float(digits) * unit if unit > 1 else int(digits)
        if number != int(number):
            raise ValueError
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no count such as 4096, 128k or 128K") from None
    return int(number)


Count = Annotated[int, Parameter(converter=count)]


@dataclass(frozen=True, kw_only=True)
class ServerFlags:
    """Where the server listens, and how it ends."""

    host: Annotated[str, Parameter(group=_SERVER, help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Parameter(group=_SERVER, help="Port to listen on; 0 takes a free one.")] = 8000
    uds: Annotated[Path | None, Parameter(group=_SERVER, help="Unix socket to listen on, instead.")] = None
    root_path: Annotated[str, Parameter(group=_SERVER, help="Path under which a proxy serves this server.")] = ""
    shutdown_timeout: Annotated[
        float, Parameter(group=_SERVER, help="Seconds that open requests have left after SIGINT or SIGTERM.")
    ] = 3.0
    api_server_count: Annotated[
        int, Parameter(group=_SERVER, help="Processes that serve the API at the one address, for more streams at once.")
    ] = 1
    health_timeout: Annotated[
        float,
        Parameter(
            group=_SERVER,
            help="Seconds that a step of the engine may take before /health is 503; 0 for any time.",
        ),
    ] = 120.0


@dataclass(frozen=True, kw_only=True)
class ApiFlags:
    """What the API takes and gives."""

    api_key: Annotated[
        list[str] | None,
        Parameter(group=_API, negative=(), help="A key that clients must send; may be given again for more."),
    ] = None
    served_model_name: Annotated[
        list[str] | None,
        Parameter(
            name=("--served-model-name", "--alias"),
            group=_API,
            consume_multiple=True,
            negative=(),
            help="Names for `model` in requests; the first is put in answers. MODEL's own name by default.",
        ),
    ] = None
    allowed_origins: Annotated[
        list[str] | None,
        Parameter(
            group=_API,
            consume_multiple=True,
            negative=(),
            help="Origins whose web pages may call the server; `*` for all.",
        ),
    ] = None
    strict_fields: Annotated[
        bool, Parameter(group=_API, help="Refuse request fields that nobody knows, instead of naming them in a header.")
    ] = False
    reasoning_field: Annotated[
        Literal["both", "reasoning", "reasoning_content"],
        Parameter(group=_API, help="Name of the field that carries the reasoning in chat answers."),
    ] = "both"
    reasoning_summary: Annotated[
        Literal["none", "text"],
        Parameter(
            group=_API,
            help="What a Responses request that asks for a summary of the reasoning gets as one: `none`, for the model "
            "writes none, or the reasoning's own `text`.",
        ),
    ] = "none"
    vllm_metrics: Annotated[bool, Parameter(group=_API, help="Show the metrics a second time under vLLM's prefix.")] = (
        True
    )
    response_store: Annotated[
        str,
        Parameter(
            group=_API,
            help="Where the responses API keeps answers to go on from: `memory`, `none`, or `sqlite:PATH`.",
        ),
    ] = "memory"
    max_body_bytes: Annotated[
        Count | None,
        Parameter(group=_API, help="A longer request body is answered with 413. By the model's context by default."),
    ] = None
    chat_format: Annotated[
        str,
        Parameter(group=_API, help="How the model writes chats, by name; auto goes by the model's files."),
    ] = "auto"
    body_timeout: Annotated[
        float, Parameter(group=_API, help="Seconds that a request body has to arrive, before it is answered with 408.")
    ] = 60.0
    current_date: Annotated[
        str, Parameter(group=_API, help="Date told to the model: `today`, `none`, or a fixed YYYY-MM-DD.")
    ] = "today"


@dataclass(frozen=True, kw_only=True)
class EngineFlags:
    """How the model runs."""

    device: Annotated[str, Parameter(group=_ENGINE, help="auto, cpu, cuda or cuda:N.")] = "auto"
    dtype: Annotated[str, Parameter(group=_ENGINE, help="auto, float32, bfloat16 or float16.")] = "auto"
    max_model_len: Annotated[
        Count | None,
        Parameter(
            name=("--max-model-len", "--context-length", "--ctx-size", "-c"),
            group=_ENGINE,
            help="Tokens of prompt and answer together that a request may have, such as 8192, 128k or 128K.",
        ),
    ] = None
    max_num_seqs: Annotated[
        int,
        Parameter(
            name=("--max-num-seqs", "--max-running-requests"), group=_ENGINE, help="Requests that run at the same time."
        ),
    ] = 128
    max_num_batched_tokens: Annotated[
        Count,
        Parameter(
            name=("--max-num-batched-tokens", "--chunked-prefill-size"),
            group=_ENGINE,
            help="Tokens computed in one step; 0: 4096 on a CPU, 16384 on a GPU.",
        ),
    ] = 0
    block_size: Annotated[
        int,
        Parameter(
            name=("--block-size", "--page-size"),
            group=_ENGINE,
            help="Tokens in a block of the KV cache; 0: 16 on a CPU, 128 on a GPU.",
        ),
    ] = 0
    gpu_memory_utilization: Annotated[
        float,
        Parameter(
            name=("--gpu-memory-utilization", "--mem-fraction-static"),
            group=_ENGINE,
            help="Share of a GPU's memory to use.",
        ),
    ] = 0.9
    enable_prefix_caching: Annotated[
        bool,
        Parameter(
            negative=("--no-enable-prefix-caching", "--disable-radix-cache"),
            group=_ENGINE,
            help="Keep the KV cache of prompts for later requests that begin alike.",
        ),
    ] = True
    tensor_parallel_size: Annotated[
        int,
        Parameter(
            name=("--tensor-parallel-size", "--tp-size", "--tp", "-tp"),
            group=_ENGINE,
            help="GPUs that share the model; only 1 for now.",
        ),
    ] = 1
    seed: Annotated[int | None, Parameter(group=_ENGINE, help="Seed of requests that bring none.")] = None
    experts: Annotated[
        Literal["auto", "mxfp4", "fp8", "fp8-block", "bf16"],
        Parameter(
            group=_ENGINE,
            help="Format of the experts' weights; auto is as stored, but on a Hopper GPU MXFP4 becomes fp8.",
        ),
    ] = "auto"
    dense: Annotated[
        Literal["auto", "bf16", "fp8", "fp8-block"],
        Parameter(group=_ENGINE, help="Format of attention's weights and the unembedding's; auto is as stored."),
    ] = "auto"
    cuda_graphs: Annotated[
        Literal["auto", "on", "off"],
        Parameter(
            group=_ENGINE,
            help="Launch decode steps and short prompts as CUDA graphs; auto does on a GPU whose kernels allow it.",
        ),
    ] = "auto"
    load_format: Annotated[
        Literal["auto", "dummy"],
        Parameter(
            group=_ENGINE,
            help="dummy makes up weights of the model's shape on the device; gpt-oss-20b and -120b need no file.",
        ),
    ] = "auto"
    num_threads: Annotated[
        int | None,
        Parameter(
            name=("--num-threads", "--threads"),
            group=_ENGINE,
            help="CPU threads that compute, on a CPU. OMP_NUM_THREADS by default, else one for a small model.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class CompatibleFlags:
    """Flags that other servers need for gpt-oss, and that are always in force here."""

    reasoning_parser: Annotated[str | None, Parameter(group=_COMPATIBLE)] = None
    tool_call_parser: Annotated[str | None, Parameter(group=_COMPATIBLE)] = None
    enable_auto_tool_choice: Annotated[bool, Parameter(group=_COMPATIBLE, negative=())] = False
    structured_outputs_config: Annotated[str | None, Parameter(group=_COMPATIBLE)] = None
    grammar_backend: Annotated[str | None, Parameter(group=_COMPATIBLE)] = None
    enable_metrics: Annotated[bool, Parameter(group=_COMPATIBLE, negative=())] = False
    trust_remote_code: Annotated[bool, Parameter(group=_COMPATIBLE, negative=())] = False
