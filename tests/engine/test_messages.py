"""Every message survives the wire."""

from array import array

import msgspec
import pytest

from rose.engine.messages import (
    Abort,
    AddRequest,
    EngineDied,
    EngineOutputs,
    EngineReady,
    EngineStats,
    FromEngine,
    LoadProgress,
    RequestFailure,
    RequestOutput,
    Shutdown,
    ToEngine,
    TokenLogprobs,
)
from rose.engine.sampling_params import SamplingParams
from rose.engine.scheduler_output import NewRequest, SampledTokens, ScheduledRequest, SchedulerOutput

PARAMS = SamplingParams(
    n=2, temperature=0.7, top_k=5, logit_bias={3: -1.5, 100: 2.0}, seed=2**63 - 1, stop_token_ids=(1, 2), logprobs=3
)


@pytest.mark.parametrize(
    "message",
    [
        AddRequest(request_id="a", prompt_token_ids=[1, 200_000], sampling_params=PARAMS),
        Abort(request_id="a"),
        Abort(request_id="a", index=1, finish_reason="stop"),
        Shutdown(),
    ],
)
def test_to_the_engine(message: ToEngine) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ToEngine) == message


@pytest.mark.parametrize(
    "message",
    [
        LoadProgress(done_bytes=1, total_bytes=2**40),
        EngineReady(max_model_len=1, vocab_size=2, block_size=3, num_blocks=4, device="cpu", dtype="float32"),
        EngineOutputs(
            outputs=[
                RequestOutput(request_id="a", index=1, token_ids=[5], logprobs=[TokenLogprobs(-0.5, [(5, -0.5)])]),
                RequestOutput(
                    request_id="b", finish_reason="error", error=RequestFailure(message="no", param="p", code="c")
                ),
            ],
            stats=EngineStats(num_running=1, kv_cache_usage=0.5),
        ),
        EngineDied(message="x", is_user_error=True, error_type="ConfigError"),
    ],
)
def test_from_the_engine(message: FromEngine) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=FromEngine) == message


def test_to_the_workers() -> None:
    new = NewRequest(
        key=1, token_ids=[1], num_prompt_tokens=1, params=PARAMS, seed=3, stop_ids=(4,), block_tables=([1], [2])
    )
    scheduled = ScheduledRequest(key=1, num_computed_tokens=0, num_tokens=1, new_blocks=([1], []))
    output = SchedulerOutput(dropped=[0], new=[new], scheduled=[scheduled])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(output), type=SchedulerOutput) == output
    packed = msgspec.structs.replace(output, new=[msgspec.structs.replace(new, token_ids=array("q", [1]))])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(packed, enc_hook=list), type=SchedulerOutput) == output
    sampled = SampledTokens(key=1, token_ids=[2], logprobs=[TokenLogprobs(-1.0, [])])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sampled), type=SampledTokens) == sampled
