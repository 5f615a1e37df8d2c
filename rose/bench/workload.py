"""What benchmarks ask of an engine."""

import random

from rose.engine.messages import AddRequest
from rose.engine.sampling_params import SamplingParams


class RandomPrompts:
    """Requests with prompts of random token ids, never the same twice, reproducible by the seed."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        self.random = random.Random(seed)
        self._vocab_size = vocab_size
        self._count = 0

    def token_ids(self, length: int) -> list[int]:
        """Uniform over the vocabulary."""
        return self.random.choices(range(self._vocab_size), k=length)

    def request(self, length: int, *, max_tokens: int | None, temperature: float) -> AddRequest:
        """A request that goes on until `max_tokens`, or the context's end, whatever it samples."""
        self._count += 1
        params = SamplingParams(
            temperature=temperature, max_tokens=max_tokens, ignore_eos=True, seed=self.random.getrandbits(62)
        )
        return AddRequest(
            request_id=f"bench-{self._count}", prompt_token_ids=self.token_ids(length), sampling_params=params
        )
