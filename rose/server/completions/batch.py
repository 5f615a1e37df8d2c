"""The prompts of one request, generated side by side."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from rose.server.completion import CompletionDelta
from rose.server.generation import Generation, GenerationRequest, Generator, Usage

_MAX_WAITING = 64  # deltas a slow reader may leave lying, before the engine's outputs wait as well


class GenerationBatch:
    """Generations that succeed or fail together: iterate over `deltas()` once, and `close()` in the end."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        self.generations = generations

    @property
    def usage(self) -> Usage:
        """Token counts so far, of all together."""
        parts = [generation.usage for generation in self.generations]
        return Usage(
            num_prompt_tokens=sum(part.num_prompt_tokens for part in parts),
            num_cached_tokens=sum(part.num_cached_tokens for part in parts),
            num_completion_tokens=sum(part.num_completion_tokens for part in parts),
        )

    async def deltas(self) -> AsyncGenerator[tuple[int, CompletionDelta], None]:
        """What the generations bring, in order of arrival, each delta with its prompt's position."""
        queue: asyncio.Queue[tuple[int, CompletionDelta] | Exception | None] = asyncio.Queue(_MAX_WAITING)
        pumps = [asyncio.create_task(_pump(i, each, queue)) for i, each in enumerate(self.generations)]
        num_open = len(pumps)
        try:
            while num_open:
                got = await queue.get()
                if isinstance(got, Exception):
                    raise got
                if got is None:
                    num_open -= 1
                else:
                    yield got
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            await self.close()

    async def close(self) -> None:
        """Release all of them. Harmless when they are finished."""
        for generation in self.generations:
            await generation.close()


async def start_batch(
    generator: Generator, wanted: Sequence[GenerationRequest], *, first_output_wait_s: float | None = None
) -> GenerationBatch:
    """Start them all. Raises what the first one that is refused raises, after releasing the others."""
    starts = [asyncio.create_task(generator.start(each, first_output_wait_s=first_output_wait_s)) for each in wanted]
    try:
        return GenerationBatch(await asyncio.gather(*starts))
    except BaseException:
        for start in starts:
            start.cancel()
        for ended in await asyncio.gather(*starts, return_exceptions=True):
            if isinstance(ended, Generation):
                await ended.close()
        raise


async def _pump(
    position: int, generation: Generation, queue: "asyncio.Queue[tuple[int, CompletionDelta] | Exception | None]"
) -> None:
    try:
        async with aclosing(generation.deltas()) as deltas:
            async for delta in deltas:
                await queue.put((position, delta))
    except Exception as error:
        await queue.put(error)
    else:
        await queue.put(None)
