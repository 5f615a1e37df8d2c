"""The answer to one completion request, streamed or whole."""

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from msgspec import UNSET

from rose.chat.tokenizer import Tokenizer
from rose.errors import RequestError
from rose.server.completions.batch import GenerationBatch
from rose.server.completions.convert import as_client_named_it
from rose.server.completions.objects import Choice, PromptTokensDetails, TextCompletion, Usage
from rose.server.completions.schema import CompletionRequest
from rose.server.completions.writer import ChoiceWriter, join
from rose.server.errors import to_api_error
from rose.server.generation import Usage as TokenCounts
from rose.server.sse import DONE, sse_data

_encoder = msgspec.json.Encoder()


class Answer:
    """Writes what a batch of generations brings."""

    def __init__(
        self, batch: GenerationBatch, body: CompletionRequest, tokenizer: Tokenizer, *, model: str, fingerprint: str
    ) -> None:
        self._batch = batch
        self._body = body
        self._num_each = body.n or 1
        self._model = model
        self._fingerprint = fingerprint
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        prompts = [generation.prompt_token_ids for generation in batch.generations]
        with_logprobs = body.logprobs is not None
        self._writers = [
            ChoiceWriter(i * self._num_each + k, tokenizer, echo=ids if body.echo else (), with_logprobs=with_logprobs)
            for i, ids in enumerate(prompts)
            for k in range(self._num_each)
        ]

    async def whole(self) -> TextCompletion:
        """Everything at once, at the end."""
        pieces: list[list[Choice]] = [[] for _ in self._writers]
        async with aclosing(self._choices()) as choices:
            async for choice in choices:
                pieces[choice.index].append(choice)
        return self._completion([join(each) for each in pieces], self._batch.usage)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The events of the stream. Headers are long gone here, so a failure becomes an event, and `[DONE]` follows."""
        options = self._body.stream_options
        counts_everywhere = bool(options and options.continuous_usage_stats)
        try:
            async with aclosing(self._choices()) as choices:
                async for choice in choices:
                    counts = self._batch.usage if counts_everywhere else None
                    yield sse_data(_encoder.encode(self._completion([choice], counts)))
            if options and options.include_usage:
                yield sse_data(_encoder.encode(self._completion([], self._batch.usage)))
        except RequestError as error:
            yield sse_data(to_api_error(as_client_named_it(error)).body())
        except Exception as error:
            yield sse_data(to_api_error(error).body())
        yield DONE

    async def close(self) -> None:
        """Release the generations. Harmless when they are finished."""
        await self._batch.close()

    async def _choices(self) -> AsyncGenerator[Choice, None]:
        async with aclosing(self._batch.deltas()) as deltas:
            async for position, delta in deltas:
                told = self._batch.generations[position].prompt_logprobs
                yield self._writers[position * self._num_each + delta.index].write(delta, told)

    def _completion(self, choices: Sequence[Choice], counts: TokenCounts | None) -> TextCompletion:
        return TextCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            system_fingerprint=self._fingerprint,
            choices=list(choices),
            usage=UNSET if counts is None else _usage(counts),
        )


def _usage(counts: TokenCounts) -> Usage:
    return Usage(
        prompt_tokens=counts.num_prompt_tokens,
        completion_tokens=counts.num_completion_tokens,
        total_tokens=counts.num_prompt_tokens + counts.num_completion_tokens,
        prompt_tokens_details=PromptTokensDetails(counts.num_cached_tokens),
    )
