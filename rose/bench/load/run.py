"""Sending a load and gathering what became of it."""

import asyncio
import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from rose.bench.load.arrivals import poisson_arrivals, random_words
from rose.bench.load.client import Exchange, RequestShape, exchange
from rose.bench.load.metrics import load_metrics
from rose.bench.results import PointFailed

_PROBE_WORDS = (64, 192)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """num_prompts requests, `request_rate` a second. max_concurrency: the most that are open at once; None for any."""

    request_rate: float
    num_prompts: int
    input_len: int
    max_concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class PromptLength:
    """How a server counts: tokens of a prompt of n words are about `overhead` + `per_word` * n."""

    overhead: float
    per_word: float

    def num_words(self, num_tokens: int) -> int:
        """Words that make a prompt of about `num_tokens`."""
        return max(1, round((num_tokens - self.overhead) / self.per_word))


async def first_model(client: httpx.AsyncClient) -> str:
    """The first name that a server serves. Raises `PointFailed`."""
    try:
        response = await client.get("models")
        response.raise_for_status()
        return str(response.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
        raise PointFailed(f"cannot learn a model's name from {client.base_url}models: {error}") from error


async def measure_prompt_length(client: httpx.AsyncClient, shape: RequestShape, rng: random.Random) -> PromptLength:
    """Ask the server to count two prompts. Raises `PointFailed` if it does not answer.

    A server that does not count is taken to count words.
    """
    counted = []
    for num_words in _PROBE_WORDS:
        record = await exchange(client, shape, random_words(num_words, rng), time.perf_counter())
        if record.error is not None:
            raise PointFailed(f"the server does not answer a trial request: {record.error}")
        counted.append(record.input_tokens)
    short, long = counted
    per_word = (long - short) / (_PROBE_WORDS[1] - _PROBE_WORDS[0])
    return PromptLength(short - per_word * _PROBE_WORDS[0], per_word) if per_word > 0 else PromptLength(0.0, 1.0)


async def run_load(
    client: httpx.AsyncClient, shape: RequestShape, load: Load, lengths: PromptLength, rng: random.Random
) -> tuple[list[Exchange], float]:
    """Send every request when it is due, whatever became of the others.

    Returns what became of each, and the seconds until the last one ended.
    """
    num_words = lengths.num_words(load.input_len)
    prompts = [random_words(num_words, rng) for _ in range(load.num_prompts)]
    arrivals = poisson_arrivals(load.request_rate, load.num_prompts, rng)
    places = asyncio.Semaphore(load.max_concurrency or load.num_prompts)
    start = time.perf_counter()

    async def send(prompt: str, after_s: float) -> Exchange:
        await asyncio.sleep(start + after_s - time.perf_counter())
        async with places:
            return await exchange(client, shape, prompt, start + after_s)

    tasks = [asyncio.create_task(send(*each)) for each in zip(prompts, arrivals, strict=True)]
    try:
        exchanges = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return exchanges, time.perf_counter() - start


def serve_metrics(
    exchanges: Sequence[Exchange],
    duration_s: float,
    shape: RequestShape,
    load: Load,
    slo: Mapping[str, float],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """The result as `vllm bench serve` writes it. facts: `date`, `backend` and `label`."""
    return {
        **facts,
        "model_id": shape.model,
        "tokenizer_id": shape.model,
        "num_prompts": load.num_prompts,
        "request_rate": "inf" if math.isinf(load.request_rate) else load.request_rate,
        "burstiness": 1.0,
        "max_concurrency": load.max_concurrency,
        **load_metrics(exchanges, duration_s, slo),
    }
