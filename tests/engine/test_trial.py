"""What is tried for its memory takes as much as anything that can be asked for."""

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from rose.engine.config import EngineConfig
from rose.engine.kv_cache.spec import KVCacheSpec
from rose.engine.sampling_params import SamplingParams
from rose.engine.worker import sampler
from rose.engine.worker.sampler import SamplingRow, sample
from rose.engine.worker.token_mask import TokenMask, mask_words
from rose.engine.worker.trial import Trial
from tests.fake_model import FakeModel

NUM_REQUESTS, VOCAB_SIZE = 128, 5000


class Memory(TorchDispatchMode):
    """Counts the bytes that are in use at the same time, as a GPU's allocator does."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_iter(made):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._known:
                    self._known.add(storage._cdata)
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return made

    def _free(self, storage: int, num_bytes: int) -> None:
        self._known.discard(storage)
        self.now -= num_bytes


def peak_bytes(work: Callable[[], object]) -> int:
    with Memory() as memory:
        work()
    return memory.peak


def test_memory_is_counted() -> None:
    def work() -> None:
        for _ in range(3):
            torch.zeros(1000) + 1

    assert 8000 <= peak_bytes(work) < 9000


PARAMS = {
    "greedy": SamplingParams(temperature=0.0),
    "top_k": SamplingParams(top_k=VOCAB_SIZE - 1, min_p=0.1),
    "bias": SamplingParams(logit_bias=dict.fromkeys(range(200), 1.0)),
    "stops": SamplingParams(min_tokens=1, logprobs=20),
    "penalties": SamplingParams(presence_penalty=1.0, frequency_penalty=1.0, repetition_penalty=1.5),
    "all": SamplingParams(
        top_k=4000, top_p=0.9, min_p=0.1, min_tokens=1, logprobs=20, repetition_penalty=1.5, logit_bias={3: 1.0}
    ),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", PARAMS)
def test_no_request_takes_more_memory_to_sample_than_was_tried(
    name: str, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a GPU a kernel, which takes none.
    monkeypatch.setattr(sampler, "sample_tokens", lambda logits, *_: torch.zeros(2, len(logits), dtype=torch.int64))
    model = FakeModel(vocab_size=VOCAB_SIZE)
    config = EngineConfig(model="m", device="cpu", max_num_seqs=NUM_REQUESTS, max_num_batched_tokens=NUM_REQUESTS)
    tried = peak_bytes(Trial(model, KVCacheSpec.from_layers(model.attention_specs, 16), config).sample)
    tokens = np.zeros(50, dtype=np.int64)
    rows = [SamplingRow(PARAMS[name], 0, (0, 1), tokens, tokens[:0])] * NUM_REQUESTS
    words = np.full((NUM_REQUESTS, mask_words(VOCAB_SIZE)), -1, dtype=np.int32)
    mask = TokenMask(list(range(NUM_REQUESTS)), words) if masked else None
    assert peak_bytes(lambda: sample(torch.zeros(NUM_REQUESTS, VOCAB_SIZE), rows, mask)) <= tried * 1.01
