"""Small engines around the fake model, and the outputs they must give."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rose.engine.config import EngineConfig
from rose.engine.core import EngineCore
from rose.engine.messages import AddRequest, RequestOutput, TokenLogprobs
from rose.engine.sampling_params import SamplingParams
from rose.engine.worker.sampler import SamplingRow, sample
from rose.engine.worker.worker import Worker
from tests.fake_model import FakeModel, expected_logits

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


def make_core(
    model: FakeModel | None = None,
    *,
    num_blocks: int = 100,
    block_size: int = 4,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    max_model_len: int | None = None,
    enable_prefix_caching: bool = True,
    tokenizer_file: Path | None = None,
) -> EngineCore:
    """An engine whose KV cache is full of NaN at first, so that reading what nobody wrote shows."""
    config = EngineConfig(
        model="fake",
        device="cpu",
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
    )
    worker = Worker(config, model or FakeModel(), tokenizer_file=tokenizer_file)
    for tensor in worker.kv_tensors.tensors:
        tensor.fill_(float("nan"))
    return EngineCore(
        worker,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        enable_prefix_caching=enable_prefix_caching,
        seed=0,
    )


@dataclass
class Result:
    """What arrived for one completion."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finals: list[RequestOutput] = field(default_factory=list)

    @property
    def finish_reason(self) -> str | None:
        return self.finals[0].finish_reason if self.finals else None


class Results(defaultdict[tuple[str, int], Result]):
    """By (request id, index). Nothing may come after a final output."""

    def __init__(self) -> None:
        super().__init__(Result)

    def take(self, outputs: Iterable[RequestOutput]) -> None:
        for output in outputs:
            result = self[output.request_id, output.index]
            assert not result.finals, f"an output after the final one: {output}"
            result.token_ids += output.token_ids
            result.logprobs += output.logprobs or []
            if output.finish_reason is not None:
                result.finals.append(output)


def run(core: EngineCore, results: Results | None = None, max_steps: int = 2000) -> Results:
    """Step until nothing is left, checking the books after each step; then all blocks must be free."""
    results = Results() if results is None else results
    for _ in range(max_steps):
        if not core.has_work:
            break
        results.take(core.step().outputs)
        core.scheduler.check_integrity()
    assert not core.has_work, "the engine does not come to an end"
    assert core.scheduler.kv_cache.usage == 0.0
    return results


def add(core: EngineCore, request_id: str, prompt: list[int], params: SamplingParams = GREEDY) -> None:
    core.add(AddRequest(request_id=request_id, prompt_token_ids=prompt, sampling_params=params))


def generate(core: EngineCore, prompt: list[int], params: SamplingParams = GREEDY) -> list[int]:
    """The tokens of one request that has the engine to itself."""
    add(core, "alone", prompt, params)
    return run(core)["alone", 0].token_ids


def check_tokens(
    model: FakeModel, prompt: list[int], output: list[int], params: SamplingParams, index: int = 0
) -> None:
    """Each token must be the one that the model's definition and the sampler give, with no cache and no batch."""
    logits = expected_logits(model, prompt + output)
    for position, token_id in enumerate(output):
        row = SamplingRow(
            params=params,
            seed=(params.seed or 0) + index,
            stop_ids=() if params.ignore_eos else (*model.eos_token_ids, *params.stop_token_ids),
            prompt_token_ids=np.array(prompt),
            output_token_ids=np.array(output[:position], dtype=np.int64),
        )
        [expected] = sample(logits[len(prompt) + position - 1][None], [row])
        assert token_id == expected.token_id, f"output token {position} of {output} after {prompt}"
