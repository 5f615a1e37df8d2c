"""The Triton attention backends under Triton's interpreter, on small cases, against the op's oracle."""

from dataclasses import replace

import pytest
import torch

from rose.kernels.paged_attention.launch import DecodeLaunch, PrefillLaunch
from tests.kernels.attention_cases import Case, Inputs, make_inputs, oracle

triton = pytest.importorskip("triton", reason="Triton is not made for this system")

# head_dim 16 and blocks of 16 are the smallest that the matrix instructions take.
SMALL = {"block_size": 16, "num_q_heads": 6, "num_kv_heads": 2, "head_dim": 16}
PREFILL = [
    Case("one token", ((1, 1),), **SMALL),
    Case("no token of a request in this step", ((3, 3), (0, 5), (2, 9)), **SMALL),
    Case("ends exactly at a tile", ((32, 32),), **SMALL),
    Case("one over a tile, in the second block", ((33, 33),), **SMALL),
    Case("chunk after a prefix, lengths mixed", ((5, 40), (1, 17), (20, 20)), **SMALL),
    Case("window within a tile", ((40, 40),), sliding_window=7, **SMALL),
    Case("window over blocks, chunk after a prefix", ((20, 70), (3, 50)), sliding_window=33, **SMALL),
    Case("window longer than the request", ((9, 9),), sliding_window=100, **SMALL),
]
DECODE = [
    Case("first token", ((1, 1),), **SMALL),
    Case("several requests, ragged", ((1, 17), (1, 64), (1, 65)), **SMALL),
    Case("window", ((1, 70), (1, 12)), sliding_window=20, **SMALL),
]


def metadata(case: Case) -> dict[str, torch.Tensor]:
    query_lens, kv_lens = zip(*case.requests, strict=True)
    return {
        "cu_seqlens_q": torch.tensor([0, *query_lens]).cumsum(0).int(),
        "seq_lens": torch.tensor(kv_lens, dtype=torch.int32),
    }


def half_inputs(case: Case) -> Inputs:
    """float16, since the interpreter does not multiply bfloat16; float32 copies of the same numbers for the oracle."""
    return make_inputs(case, dtype=torch.float16)


def check(out: torch.Tensor, inputs: Inputs) -> None:
    expected = oracle(replace(inputs, query=inputs.query.double()))
    assert not out.isnan().any()
    torch.testing.assert_close(out.double(), expected.double(), atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize("case", PREFILL, ids=lambda case: case.why)
def test_prefill_agrees_with_the_oracle(case: Case) -> None:
    from rose.kernels.paged_attention.prefill_triton import attention_prefill_triton

    inputs = half_inputs(case)
    out = attention_prefill_triton(
        inputs.query,
        inputs.key_cache,
        inputs.value_cache,
        inputs.block_table,
        sinks=inputs.sinks,
        scale=case.head_dim**-0.5,
        sliding_window=case.sliding_window,
        launch=PrefillLaunch(32, 16, 4, 2, None),
        **metadata(case),
    )
    check(out, inputs)


@pytest.mark.parametrize("tile_keys", [16, 32], ids=["a tile in a block", "a tile over blocks"])
@pytest.mark.parametrize(("num_splits", "min_tiles"), [(1, 1), (3, 1), (3, 2), (7, 3)])
@pytest.mark.parametrize("case", DECODE, ids=lambda case: case.why)
def test_decode_agrees_with_the_oracle_and_counts_the_sink_once(
    case: Case, num_splits: int, min_tiles: int, tile_keys: int
) -> None:
    from rose.kernels.paged_attention.decode_triton import attention_decode_triton

    inputs = half_inputs(case)
    out = attention_decode_triton(
        inputs.query,
        inputs.key_cache,
        inputs.value_cache,
        inputs.block_table,
        seq_lens=metadata(case)["seq_lens"],
        sinks=inputs.sinks,
        scale=case.head_dim**-0.5,
        sliding_window=case.sliding_window,
        launch=DecodeLaunch(tile_keys, num_splits, min_tiles, 4, 2),
    )
    check(out, inputs)
