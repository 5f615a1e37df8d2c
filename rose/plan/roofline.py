"""The least time a step can take: bytes that must move, FLOPs that must be done, and what the machine gives.

The floor of a step is the sum over its operations of max(FLOPs / rate, bytes / bandwidth): operations follow one
another, and within one the matrix units and the memory work at the same time. What is counted:

- Weights, once a step: attention projections, router and unembedding in full, and of the experts those that the
  step's tokens reach under uniform routing, E (1 - (1 - k/E)^n). Biases, norms and the embedding's rows are not.
- The KV cache, read once a step: all positions in full layers, only those within the window in sliding ones. Its
  writing, activations, and traffic between GPUs are not counted.
- FLOPs: 2 for each weight and token it meets (experts: k per token); attention: 4 x head_dim for each head and visible
  (query, key) pair, causal and windowed. Logits are computed for one token of each request.

The default formats are those of the published weights, used as well as the hardware allows: experts in MXFP4 (4.25 bits
a weight, its scales included), other weights and KV cache in bfloat16; matrix products at the fp8 rate, attention and
router at the bf16 rate. For one prompt on an H200 (790 / 1580 TFLOP/s, 4.3 TB/s) this gives 0.040 s for 8192 tokens of
gpt-oss-20b and 0.060 s of gpt-oss-120b; a step of one request at context 8192 takes 0.91 ms and 1.23 ms.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rose.plan.machine import MachineRates
from rose.plan.shape import ModelShape, experts_touched, visible_pairs, visible_tokens

BITS_PER_WEIGHT = {"mxfp4": 4.25, "fp8": 8.0, "fp8-block": 8.0 + 32 / 128**2, "bf16": 16.0, "fp32": 32.0}
"""MXFP4 has an 8-bit scale for each 32 weights of 4 bits (OCP Microscaling v1.0), `fp8-block` 32 bits for 128 x 128."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFormats:
    """experts, dense, kv: how things are stored. gemm, attention: at which of the machine's rates they are computed."""

    experts: str = "mxfp4"
    dense: str = "bf16"
    kv: str = "bf16"
    gemm: str = "fp8"
    attention: str = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How a model is spread: `tp` GPUs share each of `dp` replicas.

    expert_parallel: whole experts are spread over all GPUs, instead of being split `tp` ways in each replica.
    """

    tp: int = 1
    dp: int = 1
    expert_parallel: bool = False

    @property
    def num_gpus(self) -> int:
        """GPUs in all."""
        return self.tp * self.dp


@dataclass(frozen=True, slots=True)
class OpWork:
    """One kind of operation in a step, all layers together, on the busiest GPU."""

    name: str
    flops: float
    num_bytes: float
    number_format: str

    def floor_s(self, rates: MachineRates) -> float:
        """The least time it takes."""
        return max(self.flops / rates.gemm_rate(self.number_format), self.num_bytes / rates.bytes_per_s)


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one step must do on each GPU."""

    ops: tuple[OpWork, ...]

    @property
    def flops(self) -> float:
        """Floating-point operations."""
        return sum(op.flops for op in self.ops)

    @property
    def num_bytes(self) -> float:
        """Bytes of memory traffic."""
        return sum(op.num_bytes for op in self.ops)

    def floor_s(self, rates: MachineRates) -> float:
        """The least time the step takes."""
        return sum(op.floor_s(rates) for op in self.ops)


def step_work(
    shape: ModelShape,
    requests: Sequence[tuple[int, float]],
    *,
    formats: NumberFormats | None = None,
    parallelism: Parallelism | None = None,
) -> StepWork:
    """The work of a step.

    requests: (tokens computed, tokens in the cache once they are) of each request of the whole deployment, which its
    data-parallel replicas share evenly.
    """
    formats, parallelism = formats or NumberFormats(), parallelism or Parallelism()
    tp, dp = parallelism.tp, parallelism.dp
    layers = shape.num_layers
    num_tokens = sum(query_len for query_len, _ in requests)
    dense_bytes, kv_bytes = (BITS_PER_WEIGHT[name] / 8 for name in (formats.dense, formats.kv))

    def dense(name: str, weights: int, tokens: float, number_format: str, split: int) -> OpWork:
        return OpWork(name, 2 * weights * tokens / dp / split, weights * dense_bytes / split, number_format)

    ops = [
        dense("projections", layers * shape.attention_weights, num_tokens, formats.gemm, tp),
        *_attention(shape, requests, kv_bytes, formats.attention, tp * dp),
        dense("router", layers * shape.router_weights, num_tokens, formats.attention, 1),
        _experts(shape, num_tokens, formats, parallelism),
        dense("unembedding", shape.unembedding_weights, len(requests), formats.gemm, tp),
    ]
    return StepWork(tuple(ops))


def prefill_work(
    shape: ModelShape,
    length: int,
    batch: int = 1,
    *,
    formats: NumberFormats | None = None,
    parallelism: Parallelism | None = None,
) -> StepWork:
    """The work of computing `batch` prompts of `length` tokens from nothing, weights read once."""
    return step_work(shape, [(length, length)] * batch, formats=formats, parallelism=parallelism)


def decode_work(
    shape: ModelShape,
    context: float,
    batch: int,
    *,
    formats: NumberFormats | None = None,
    parallelism: Parallelism | None = None,
) -> StepWork:
    """The work of one more token for each of `batch` requests. context: tokens in each one's cache, on average."""
    return step_work(shape, [(1, context)] * batch, formats=formats, parallelism=parallelism)


def _attention(
    shape: ModelShape, requests: Sequence[tuple[int, float]], kv_bytes: float, number_format: str, split: int
) -> list[OpWork]:
    token_bytes = 2 * shape.num_kv_heads * shape.head_dim * kv_bytes
    pair_flops = 4 * shape.num_q_heads * shape.head_dim
    pairs = {True: 0, False: 0}
    tokens = {True: 0, False: 0}
    for window in shape.layer_windows:
        slides = window is not None
        for query_len, kv_len in requests:
            pairs[slides] += visible_pairs(query_len, round(kv_len), window)
            tokens[slides] += visible_tokens(query_len, round(kv_len), window)
    return [
        OpWork(name, pairs[slides] * pair_flops / split, tokens[slides] * token_bytes / split, number_format)
        for name, slides in (("full attention", False), ("window attention", True))
    ]


def _experts(shape: ModelShape, num_tokens: int, formats: NumberFormats, parallelism: Parallelism) -> OpWork:
    layers, k = shape.num_layers, shape.experts_per_token
    if parallelism.expert_parallel:
        tokens, split = float(num_tokens), parallelism.num_gpus
    else:
        tokens, split = num_tokens / parallelism.dp, parallelism.tp
    touched = experts_touched(shape.num_experts, k, tokens)
    return OpWork(
        "experts",
        2 * layers * k * shape.expert_weights * tokens / split,
        layers * touched * shape.expert_weights * BITS_PER_WEIGHT[formats.experts] / 8 / split,
        formats.gemm,
    )
