"""Times the fused FP8 experts at gpt-oss's shapes: `python -m rose.kernels.moe_fp8.bench`.

Beside them, torch's grouped FP8 product of gate_up alone, on even groups and without activation: a ceiling for that
part. FLOPs count each token's four experts, not the padding of tiles.
"""

from functools import partial

import torch

from rose.kernels.linear_fp8.op import round_to_fp8
from rose.kernels.moe_fp8.op import moe_fp8
from rose.kernels.timing import time_kernel
from rose.numerics.fp8 import Fp8RowTensor, encode_rows

HIDDEN_SIZE = INTERMEDIATE_SIZE = 2880
EXPERTS_PER_TOKEN = 4


def _weight(num_experts: int, out_features: int, in_features: int) -> Fp8RowTensor:
    experts = [
        encode_rows(torch.randn(out_features, in_features, device="cuda", dtype=torch.bfloat16) * 0.03)
        for _ in range(num_experts)
    ]
    return Fp8RowTensor(torch.stack([e.values for e in experts]), torch.stack([e.scales for e in experts]))


def main() -> None:
    """Print a line for each number of experts and tokens."""
    for num_experts in (32, 128):
        gate_up = _weight(num_experts, 2 * INTERMEDIATE_SIZE, HIDDEN_SIZE)
        down = _weight(num_experts, HIDDEN_SIZE, INTERMEDIATE_SIZE)
        biases = [torch.randn(weight.shape[:2], device="cuda").bfloat16() for weight in (gate_up, down)]
        for num_tokens in (1, 8, 64, 512, 8192, 32768):
            x = round_to_fp8(torch.randn(num_tokens, HIDDEN_SIZE, device="cuda", dtype=torch.bfloat16))
            logits = torch.randn(num_tokens, num_experts, device="cuda", dtype=torch.bfloat16)
            seconds = time_kernel(
                partial(
                    moe_fp8,
                    x,
                    logits,
                    gate_up,
                    biases[0],
                    down,
                    biases[1],
                    experts_per_token=EXPERTS_PER_TOKEN,
                    swiglu_alpha=1.702,
                )
            )
            pairs = num_tokens * EXPERTS_PER_TOKEN
            flops = 2.0 * pairs * HIDDEN_SIZE * 3 * INTERMEDIATE_SIZE
            line = f"experts {num_experts:3d} tokens {num_tokens:5d} {seconds * 1e6:9.1f} us"
            print(f"{line} {flops / seconds / 1e12:6.0f} TFLOP/s")
            if pairs % num_experts == 0 and num_tokens >= 512:
                _time_torch(gate_up, num_experts, pairs)


def _time_torch(weight: Fp8RowTensor, num_experts: int, pairs: int) -> None:
    rows = (torch.randn(pairs, HIDDEN_SIZE, device="cuda") * 16).to(torch.float8_e4m3fn)
    scales = torch.ones(pairs, device="cuda")
    offsets = torch.arange(1, num_experts + 1, device="cuda", dtype=torch.int32) * (pairs // num_experts)
    seconds = time_kernel(
        lambda: torch._scaled_grouped_mm(
            rows,
            weight.values.transpose(1, 2),
            scales,
            weight.scales,
            offs=offsets,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
    )
    rate = 2.0 * pairs * HIDDEN_SIZE * 2 * INTERMEDIATE_SIZE / seconds / 1e12
    print(f"  torch's grouped product, gate_up alone, even: {seconds * 1e6:9.1f} us {rate:6.0f} TFLOP/s")


if __name__ == "__main__":
    main()
