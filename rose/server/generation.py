"""The one path from a conversation to an answer, for every API, streamed or not.

A `Conversation` is rendered to prompt ids and submitted; the engine's outputs become `CompletionDelta`s. An API's own
code turns its request into a `GenerationRequest` and the deltas into its answer, and needs nothing else.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from rose.chat.answer_format import ToolChoice
from rose.chat.conversation import Conversation
from rose.chat.events import Finished
from rose.chat.format import ChatFormat, StreamParser
from rose.chat.plain_text import PlainTextParser
from rose.chat.tokenizer import Tokenizer
from rose.engine.client import EngineClient, RequestOutputs
from rose.engine.messages import ENGINE_FAULTS, AddRequest, RequestFailure, RequestOutput, TokenLogprobs
from rose.engine.sampling_params import SamplingParams
from rose.errors import ContextLengthExceeded, EngineDead, RequestError
from rose.server.completion import Completion, CompletionDelta
from rose.server.errors import ApiError
from rose.server.metrics import Metrics, RequestRecord

MAX_STOP_STRINGS = 32


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt of token ids that is continued as plain text, with no chat format on either side."""

    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What to generate: the next turn of a conversation, or what follows a prompt of token ids.

    sampling_params: as the client wants them; its stop ids are only its own, the format's are added here. stop: stop
    strings, cut from the content together with what follows. tool_choice: which of the conversation's tools may or must
    be called. may_exceed_context: a `max_tokens` beyond the context means as many as fit, instead of a refusal.
    """

    conversation: Conversation | TokenPrompt
    sampling_params: SamplingParams
    stop: tuple[str, ...] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    may_exceed_context: bool = False


@dataclass(slots=True)
class Usage:
    """Token counts of a request so far, all its completions together."""

    num_prompt_tokens: int
    num_cached_tokens: int = 0
    num_completion_tokens: int = 0
    num_reasoning_tokens: int = 0


class Generation:
    """A request that the engine has taken: iterate over `deltas()` once, and `close()` in the end."""

    def __init__(
        self,
        *,
        engine: EngineClient,
        request: AddRequest,
        outputs: RequestOutputs,
        completions: list[Completion],
        record: RequestRecord,
    ) -> None:
        self.prompt_token_ids = request.prompt_token_ids
        self.prompt_logprobs: list[TokenLogprobs] = []
        """When asked for, of each token of the prompt but the first; there before any delta."""
        self.usage = Usage(len(request.prompt_token_ids))
        self._engine = engine
        self._request_id = request.request_id
        self._outputs = outputs
        self._completions = completions
        self._record = record
        self._first: asyncio.Task[RequestOutput] | None = None
        self._is_closed = False

    async def wait_for_first_output(self, timeout_s: float | None) -> None:
        """Wait until the engine has answered at all, but no longer than `timeout_s`; raise its refusal if it is one.

        Afterwards an HTTP status can be sent without having to be taken back.
        """
        self._first = asyncio.create_task(_next(self._outputs))
        try:
            await asyncio.wait({self._first}, timeout=timeout_s)
            if self._first.done():
                _raise_failure(self._first.result())
        except BaseException as error:
            await self.close(error)
            raise

    async def deltas(self) -> AsyncGenerator[CompletionDelta, None]:
        """What the completions bring, in order of arrival, until each is finished.

        Raises `RequestError` if the engine gives the request up, `EngineDead` if the engine is gone.
        """
        cause: BaseException | None = None
        try:
            while not self._is_finished():
                output = await self._next_output()
                _raise_failure(output)
                delta = self._take(output)
                if delta is not None:
                    yield delta
        except BaseException as error:
            cause = error
            raise
        finally:
            await self.close(cause)

    def abort(self) -> None:
        """Ask the engine to end the request. `deltas()` then raises the `ApiError` with the code `aborted`."""
        self._engine.abort(self._request_id)

    def stop_string(self, index: int = 0) -> str | None:
        """The stop string that ended a completion, if one did."""
        return self._completions[index].stop_string

    async def close(self, cause: BaseException | None = None) -> None:
        """Release the request, aborting what is unfinished of it. Harmless when closed or finished already."""
        if self._is_closed:
            return
        self._is_closed = True
        if not self._is_finished():
            self._record.on_end("error" if isinstance(cause, Exception) else "abort")
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        await self._outputs.aclose()

    def _is_finished(self) -> bool:
        return all(completion.is_finished for completion in self._completions)

    async def _next_output(self) -> RequestOutput:
        first, self._first = self._first, None
        return await (_next(self._outputs) if first is None else first)

    def _take(self, output: RequestOutput) -> CompletionDelta | None:
        completion = self._completions[output.index]
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        if completion.is_finished:
            return None
        delta = completion.push(output)
        self._record.on_output(output.index, len(output.token_ids), output.queue_s)
        self.usage.num_cached_tokens = max(self.usage.num_cached_tokens, output.num_cached_tokens)
        self.usage.num_completion_tokens = sum(each.num_tokens for each in self._completions)
        self.usage.num_reasoning_tokens = sum(each.num_reasoning_tokens for each in self._completions)
        if delta is not None and isinstance(finished := delta.events[-1], Finished):
            self._record.on_finish(completion.index, finished)
            if completion.found_stop_string:
                self._engine.abort(self._request_id, index=completion.index, finish_reason="stop")
            if finished.reason == "abort":
                raise ApiError(503, "the server ended the request before it was finished", code="aborted")
        return delta


class Generator:
    """Starts generations on one engine with one chat format."""

    def __init__(self, engine: EngineClient, chat_format: ChatFormat, tokenizer: Tokenizer, metrics: Metrics) -> None:
        self._engine = engine
        self._format = chat_format
        self._tokenizer = tokenizer
        self._metrics = metrics

    @property
    def is_alive(self) -> bool:
        """Whether anything can be started: false once the engine has died, or was closed for the server's end."""
        return self._engine.is_alive

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer together that one request may have."""
        return self._engine.info.max_model_len

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id that a prompt may have."""
        return self._engine.info.vocab_size

    async def render(self, conversation: Conversation) -> list[int]:
        """The prompt's ids. In a thread, for a long text takes a while and the other streams must go on."""
        return await asyncio.to_thread(self._format.render, conversation)

    async def start(self, request: GenerationRequest, *, first_output_wait_s: float | None = None) -> Generation:
        """Render and submit a request, and wait for its first output, by default as long as it takes.

        Raises `RequestError` if the request is refused, here or by the engine, and `EngineDead`.
        """
        record = self._metrics.begin_request(request.sampling_params.n)
        params = request.sampling_params
        params.validate()
        if not self._engine.is_alive:
            raise EngineDead("the engine is not running")
        prompt_token_ids, parser, grammar = await self._prepare(request)
        self._check_length(prompt_token_ids)
        if request.may_exceed_context and params.max_tokens is not None:
            room = self.max_model_len - len(prompt_token_ids)
            params = msgspec.structs.replace(params, max_tokens=min(params.max_tokens, room))
        record.on_submit(len(prompt_token_ids))
        added = AddRequest(
            request_id=uuid.uuid4().hex,
            prompt_token_ids=prompt_token_ids,
            sampling_params=_with_format_rules(params, self._format, grammar),
        )
        completions = [Completion(index, parser(), request.stop, params.stop_token_ids) for index in range(params.n)]
        generation = Generation(
            engine=self._engine,
            request=added,
            outputs=self._engine.submit(added),
            completions=completions,
            record=record,
        )
        await generation.wait_for_first_output(first_output_wait_s)
        return generation

    async def _prepare(self, request: GenerationRequest) -> tuple[list[int], Callable[[], StreamParser], str | None]:
        """The prompt's ids, what makes a parser for that which follows them, and the grammar it must follow."""
        prompt = request.conversation
        if isinstance(prompt, TokenPrompt):
            return list(prompt.token_ids), lambda: PlainTextParser(self._tokenizer), request.sampling_params.grammar
        token_ids, grammar = await asyncio.to_thread(self._compose, prompt, request.tool_choice)
        return token_ids, lambda: self._format.parser(token_ids), grammar

    def _compose(self, conversation: Conversation, tool_choice: ToolChoice) -> tuple[list[int], str | None]:
        """What takes a while for a long text or a large schema, in one trip to a thread."""
        grammar = self._format.grammar(conversation, tool_choice)
        return self._format.render(conversation), grammar

    def _check_length(self, prompt_token_ids: list[int]) -> None:
        """Refuse here what the engine would refuse too, before megabytes of ids cross to it."""
        num_prompt, limit = len(prompt_token_ids), self._engine.info.max_model_len
        if num_prompt >= limit:
            raise ContextLengthExceeded(
                f"the prompt has {num_prompt} tokens, but the model's context is {limit} tokens, "
                "of which the answer needs at least one"
            )


def _with_format_rules(params: SamplingParams, chat_format: ChatFormat, grammar: str | None) -> SamplingParams:
    """The client's parameters with the turn's grammar, and the format's stop ids, which `ignore_eos` switches off."""
    merged = dict.fromkeys((*chat_format.stop_token_ids, *params.stop_token_ids))
    return msgspec.structs.replace(params, stop_token_ids=tuple(merged), grammar=grammar)


def _raise_failure(output: RequestOutput) -> None:
    if output.finish_reason != "error":
        return
    failure = output.error or RequestFailure(message="the engine gave the request up")
    if failure.code in ENGINE_FAULTS:
        raise ApiError(500, failure.message, code=failure.code)
    raise RequestError(failure.message, param=failure.param, code=failure.code)


async def _next(outputs: RequestOutputs) -> RequestOutput:
    try:
        return await outputs.__anext__()
    except StopAsyncIteration:
        raise EngineDead("the engine's outputs ended before the request was finished") from None
