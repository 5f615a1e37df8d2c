"""The next token of each row of logits: the best one, or one drawn at random.

With b = max_i logits[r, i] and T = temperatures[r], over the vocabulary in order:

    p[i] = exp((logits[r, i] - b) / T);    token = the first t with sum_{i <= t} p[i] > uniforms[r] * sum_i p[i]

and where T is 0, the lowest i with logits[r, i] == b. So a row's token depends on that row alone. A logit of -inf is
never drawn.

logits: [num_rows, vocab_size] float32, contiguous. temperatures: [num_rows] float32, at least 0. uniforms: [num_rows]
float64 in [0, 1). Returns [2, num_rows] int64: the tokens, and 1 where b is a finite number and no logit is NaN; where
that is 0 the token means nothing, but is below vocab_size. One tensor, since each copy to the host waits. Sums are in
float32 within some thousands of tokens, and in float64 over these.
Hardware: any; no host synchronisation on Hopper, so it can sit in a CUDA graph. Source: inversion of the cumulative
distribution function (Devroye, "Non-Uniform Random Variate Generation", 1986, chapter 3.2).
"""

import torch
from torch import Tensor

from rose.kernels.contract import require, require_dtype, require_shape
from rose.kernels.hopper import on_hopper
from rose.kernels.sampling.reference import sample_tokens_reference

_OP = "sample_tokens"


def sample_tokens(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> Tensor:
    """Choose a token for each row; see the module's contract. Raises UnsupportedShape."""
    require_shape(_OP, "logits", logits, (None, None))
    num_rows, vocab_size = logits.shape
    require_shape(_OP, "temperatures", temperatures, (num_rows,))
    require_shape(_OP, "uniforms", uniforms, (num_rows,))
    require_dtype(_OP, "logits", logits, torch.float32)
    require_dtype(_OP, "temperatures", temperatures, torch.float32)
    require_dtype(_OP, "uniforms", uniforms, torch.float64)
    require(logits.is_contiguous(), _OP, f"logits must be contiguous, got strides {logits.stride()}")
    require(vocab_size > 0, _OP, "there is no token to choose")
    if on_hopper(logits) and num_rows > 0:
        from rose.kernels.sampling.sampling_triton import sample_tokens_triton

        return sample_tokens_triton(logits, temperatures, uniforms)
    return sample_tokens_reference(logits, temperatures, uniforms)
