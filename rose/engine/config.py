"""The engine's configuration, checked when it is made.

`auto` and None mean that the engine chooses. It does so once, when the model is loaded, and keeps the choice in a new
`EngineConfig` (`resolved`), so that no other code asks what `auto` means.
"""

import dataclasses
import json
from dataclasses import dataclass

from rose.errors import ConfigError

DEVICES = ("auto", "cpu", "cuda")
DENSE_FORMATS = ("auto", "bf16", "fp8", "fp8-block")
EXPERT_FORMATS = (*DENSE_FORMATS, "mxfp4")
DTYPES = ("auto", "float32", "bfloat16", "float16")
CUDA_GRAPHS = ("auto", "on", "off")


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """How to run one engine. Raises `ConfigError` for a value or combination that cannot work.

    model: a bundled name, a folder or a hub id. device: `auto`, `cpu`, `cuda` or `cuda:<n>`. dtype: of activations and
    KV cache; `auto` is float32 on a CPU and bfloat16 on a GPU.
    max_model_len: tokens of prompt and output together that one request may have; None is as many as the model and the
    memory allow. max_num_seqs: requests that run at once. max_num_batched_tokens: tokens computed in one step; a
    longer prompt takes several steps. 0 is 4096 on a CPU; on a GPU 16384, which fills the tiles of 128 experts.
    block_size: tokens in one KV block. 0 is 16 on a CPU and 128 on a GPU, where a block is a kernel's tile.
    gpu_memory_utilization: share of a GPU's memory for weights, activations and KV cache together. kv_cache_bytes or
    num_blocks: the KV cache's size, instead of what the memory suggests.
    cuda_graphs: `on` launches decode steps and prompts of up to 8192 tokens as graphs, a few of them captured when the
    engine starts and each other when it is first needed; `auto` does so on a GPU if all of the model's kernels can be
    captured.
    seed: of the random numbers that requests without a seed of their own are given; None draws one.
    num_threads: CPU threads that compute, of the whole process, when the device is a CPU; None leaves it to
    `OMP_NUM_THREADS` where that is set, and else takes one for a small model and torch's own choice for others.
    load_format: `auto` reads the checkpoint; `dummy` makes up weights of the model's shape on the device, and needs no
    file for gpt-oss-20b and gpt-oss-120b; `package.module:function` calls a loader of your own with the arguments of
    `rose.weights.loader.load_model`.
    experts, dense: the formats of the experts' weights and of attention's and the unembedding's: `auto`, `bf16`,
    `fp8`, `fp8-block`, and `mxfp4` for experts. What is stored otherwise is converted while loading.
    """

    model: str
    device: str = "auto"
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 0
    block_size: int = 0
    gpu_memory_utilization: float = 0.9
    kv_cache_bytes: int | None = None
    num_blocks: int | None = None
    enable_prefix_caching: bool = True
    tensor_parallel_size: int = 1
    cuda_graphs: str = "auto"
    seed: int | None = None
    num_threads: int | None = None
    load_format: str = "auto"
    experts: str = "auto"
    dense: str = "auto"

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_numbers()
        if 0 < self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}): each running request needs one token of every step"
            )
        if self.kv_cache_bytes is not None and self.num_blocks is not None:
            raise ConfigError("kv_cache_bytes and num_blocks both set the KV cache's size; give one of them")

    def _check_choices(self) -> None:
        if not self.model:
            raise ConfigError("model must name a bundled model, a folder or a hub id")
        if self.device not in DEVICES and not (self.device.startswith("cuda:") and self.device[5:].isdigit()):
            raise ConfigError(f"device must be auto, cpu, cuda or cuda:<n>, not {self.device!r}")
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        if self.load_format not in ("auto", "dummy") and ":" not in self.load_format:
            raise ConfigError(f"load_format must be auto, dummy or package.module:function, not {self.load_format!r}")
        if self.experts not in EXPERT_FORMATS:
            raise ConfigError(f"experts must be one of {', '.join(EXPERT_FORMATS)}, not {self.experts!r}")
        if self.dense not in DENSE_FORMATS:
            raise ConfigError(f"dense must be one of {', '.join(DENSE_FORMATS)}, not {self.dense!r}")
        if self.cuda_graphs not in CUDA_GRAPHS:
            raise ConfigError(f"cuda_graphs must be one of {', '.join(CUDA_GRAPHS)}, not {self.cuda_graphs!r}")
        if self.tensor_parallel_size != 1:
            raise ConfigError(f"tensor_parallel_size must be 1 for now, not {self.tensor_parallel_size}")

    def _check_numbers(self) -> None:
        for name, low in (
            ("max_model_len", 2),
            ("max_num_seqs", 1),
            ("max_num_batched_tokens", 0),
            ("block_size", 0),
            ("kv_cache_bytes", 1),
            ("num_blocks", 2),
            ("num_threads", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigError(f"{name} must be at least {low}, not {value}")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ConfigError(
                f"gpu_memory_utilization must be above 0 and at most 1, not {self.gpu_memory_utilization}"
            )

    def check_length(self, max_position: int) -> None:
        """Raise `ConfigError` if a request may be longer than the model's positions."""
        if self.max_model_len is not None and self.max_model_len > max_position:
            raise ConfigError(f"max_model_len {self.max_model_len} is longer than the model's {max_position} positions")

    def for_device(self, device_type: str) -> "EngineConfig":
        """The configuration with what depends on the kind of device, `cpu` or `cuda`, chosen where it was left open.

        Raises `ConfigError` for what this kind of device cannot do.
        """
        is_cpu = device_type == "cpu"
        if is_cpu and self.cuda_graphs == "on":
            raise ConfigError("cuda_graphs on needs a GPU, and the device is a CPU")
        return dataclasses.replace(
            self,
            block_size=self.block_size or (16 if is_cpu else 128),
            max_num_batched_tokens=self.max_num_batched_tokens or max(4096 if is_cpu else 16384, self.max_num_seqs),
            cuda_graphs="off" if is_cpu else self.cuda_graphs,
        )

    def resolved(
        self,
        *,
        device: str,
        dtype: str,
        max_model_len: int,
        num_blocks: int,
        seed: int,
        num_threads: int,
        cuda_graphs: str,
    ) -> "EngineConfig":
        """The configuration with every choice made."""
        return dataclasses.replace(
            self,
            device=device,
            dtype=dtype,
            max_model_len=max_model_len,
            num_blocks=num_blocks,
            kv_cache_bytes=None,
            seed=seed,
            num_threads=num_threads,
            cuda_graphs=cuda_graphs,
        )

    def to_json(self) -> str:
        """For another process; `from_json` is the way back."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "EngineConfig":
        """The configuration that `to_json` wrote."""
        return cls(**json.loads(text))
