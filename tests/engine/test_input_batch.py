"""A step's inputs against their definition, written out token by token."""

import random
from array import array

import pytest
import torch

from rose.engine.kv_cache.spec import KVCacheSpec, KVGroup
from rose.engine.sampling_params import SamplingParams
from rose.engine.scheduler_output import NewRequest, ScheduledRequest, SchedulerOutput
from rose.engine.worker.batch_shape import BatchShape
from rose.engine.worker.input_batch import InputBatch
from rose.engine.worker.kv_tensors import KVTensors
from rose.engine.worker.sampler import uniform

CPU = torch.device("cpu")
MAX_LEN, SIZE = 2048, 16


def make_batch() -> InputBatch:
    spec = KVCacheSpec((KVGroup(None, (0,)), KVGroup(20, (1,))), SIZE, num_kv_heads=1, head_dim=1)
    kv = KVTensors(spec, 2000, device=CPU, dtype=torch.float32)
    return InputBatch(kv, max_num_seqs=8, max_num_batched_tokens=8192, max_model_len=MAX_LEN, device=CPU)


def new_request(key: int, length: int, rng: random.Random, params: SamplingParams) -> NewRequest:
    num_blocks = -(-length // SIZE)
    return NewRequest(
        key=key,
        token_ids=array("q", [rng.randrange(50) for _ in range(length)]),
        num_prompt_tokens=length,
        params=params,
        seed=key,
        stop_ids=(),
        block_tables=tuple([rng.randrange(1, 2000) for _ in range(num_blocks)] for _ in range(2)),
    )


# (length, computed before, tokens of this step): single tokens, short and long runs, none of them on a block's edge.
STEPS = {
    "decode": [(40, 39, 1), (16, 15, 1), (17, 16, 1)],
    "one long run": [(1500, 0, 1500)],
    "a long chunk": [(1800, 37, 700)],
    "short runs": [(40, 3, 37), (16, 0, 16), (500, 17, 480)],
    "everything": [(40, 39, 1), (1500, 33, 600), (30, 0, 30), (1200, 600, 600), (9, 8, 1)],
}


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("name", STEPS)
def test_inputs_are_what_they_are_defined_to_be(name: str, padding: int) -> None:
    rng, batch, step = random.Random(name), make_batch(), STEPS[name]
    params = SamplingParams(temperature=1.0)
    new = [new_request(key, length, rng, params) for key, (length, _, _) in enumerate(step)]
    scheduled = [
        ScheduledRequest(key=key, num_computed_tokens=start, num_tokens=count)
        for key, (_, start, count) in enumerate(step)
    ]
    batch.apply(SchedulerOutput(new=new, scheduled=scheduled))
    shape = batch.shape(scheduled)
    more = padding if shape.max_query_len == 1 else min(padding, 1)  # requests that nobody made
    inputs = batch.buffers.inputs(
        BatchShape(shape.num_tokens + padding, shape.num_requests + more, shape.max_query_len, MAX_LEN)
    )
    host = inputs.host
    for values in (host.token_ids, host.positions, *host.slot_mappings, *host.block_tables, host.seq_lens):
        values[...] = -1
    batch.fill(inputs, scheduled)

    at = [
        (request, position)
        for request, (_, start, count) in enumerate(step)
        for position in range(start, start + count)
    ]
    num_tokens = len(at)
    assert host.token_ids[:num_tokens].tolist() == [new[request].token_ids[position] for request, position in at]
    assert host.positions[:num_tokens].tolist() == [position for _, position in at]
    for group, slots in enumerate(host.slot_mappings):
        assert slots[:num_tokens].tolist() == [
            new[request].block_tables[group][position // SIZE] * SIZE + position % SIZE for request, position in at
        ]
    ends = [start + count for _, start, count in step]
    assert host.seq_lens[: len(step)].tolist() == ends
    for group, table in enumerate(host.block_tables):
        for request, end in enumerate(ends):
            num_blocks = -(-end // SIZE)
            assert table[request, :num_blocks].tolist() == new[request].block_tables[group][:num_blocks]
    firsts = [sum(count for _, _, count in step[:i]) for i in range(len(step) + 1)]
    assert host.cu_seqlens_q[: len(step) + 1].tolist() == firsts
    sampling = [i for i, (length, start, count) in enumerate(step) if start + count == length]
    assert batch.sampling_keys(scheduled) == sampling
    assert host.sampling_rows[: len(sampling)].tolist() == [firsts[i + 1] - 1 for i in sampling]
    assert host.uniforms[: len(sampling)].tolist() == [uniform(i, 0) for i in sampling]
    # Padding lives in the null block.
    assert all((slots[num_tokens:] < SIZE).all() and (slots[num_tokens:] >= 0).all() for slots in host.slot_mappings)
    assert all((table[len(step) :] == 0).all() for table in host.block_tables)
