"""Times prefill attention at gpt-oss's shapes: `python -m rose.kernels.paged_attention.bench [--fa3 LIBRARY]`.

LIBRARY: a shared object that registers FlashAttention-3's `fwd` with sinks, as vLLM builds it (`_vllm_fa3_C.abi3.so`);
then it is measured beside ours in the same run. FLOPs count the lower triangle once, or the window.
"""

import argparse
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from rose.kernels.paged_attention.op import paged_attention
from rose.kernels.timing import time_kernel

NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 64, 8, 64, 128


class Prompt:
    """One prompt of `length` tokens over scattered blocks."""

    def __init__(self, length: int) -> None:
        self.length = length
        num_blocks = math.ceil(length / BLOCK_SIZE)
        shape = (num_blocks, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
        self.query = torch.randn(length, NUM_Q_HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
        self.key, self.value = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self.table = torch.randperm(num_blocks, device="cuda", dtype=torch.int32).unsqueeze(0)
        self.cu_seqlens_q = torch.tensor([0, length], dtype=torch.int32, device="cuda")
        self.seq_lens = torch.tensor([length], dtype=torch.int32, device="cuda")
        self.sinks = torch.randn(NUM_Q_HEADS, device="cuda")
        self.scaled = (self.query.float() * HEAD_DIM**-0.5 / math.log(2.0)).bfloat16()

    def ours(self, window: int | None) -> Tensor:
        """The op, with the query scaled as the model scales it."""
        return paged_attention(
            self.scaled,
            self.key,
            self.value,
            self.table,
            cu_seqlens_q=self.cu_seqlens_q,
            seq_lens=self.seq_lens,
            max_query_len=self.length,
            max_kv_len=self.length,
            sinks=self.sinks,
            scale=math.log(2.0),
            sliding_window=window,
        )

    def fa3(self, window: int | None) -> Tensor:
        """FlashAttention-3 on the same cache."""
        left, right = (-1, -1) if window is None else (window - 1, 0)
        out: Tensor = torch.ops._vllm_fa3_C.fwd(
            self.query, self.key, self.value, None, None, None, None, self.cu_seqlens_q, None, None, None,
            self.seq_lens, self.length, self.key.shape[0] * BLOCK_SIZE, self.table, None, None, None, None, None,
            None, None, None, HEAD_DIM**-0.5, True, left, right, 0.0, True, None, 0, None, 0,
            self.sinks.bfloat16(), 1, 0, None,
        )[0]  # fmt: skip
        return out


def num_flops(length: int, window: int | None) -> float:
    """Two products of 2 * head_dim operations for each visible pair."""
    pairs = length * length / 2 if window is None else length * window
    return 4.0 * NUM_Q_HEADS * HEAD_DIM * pairs


def main() -> None:
    """Print a line for each backend, length and window."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fa3", help="shared object with FlashAttention-3's operator")
    parser.add_argument("--lengths", default="8192,32768,128000")
    arguments = parser.parse_args()
    if arguments.fa3:
        torch.ops.load_library(arguments.fa3)
    for length in map(int, arguments.lengths.split(",")):
        prompt = Prompt(length)
        backends: dict[str, Callable[[int | None], Tensor]] = {"rose": prompt.ours}
        if arguments.fa3:
            backends["fa3"] = prompt.fa3
        for window in (None, 128):
            for name, attend in backends.items():
                seconds = time_kernel(partial(attend, window))
                rate = num_flops(length, window) / seconds / 1e12
                print(f"{name:5s} length {length:6d} window {window!s:5s} {seconds * 1e3:9.3f} ms {rate:6.0f} TFLOP/s")


if __name__ == "__main__":
    main()
