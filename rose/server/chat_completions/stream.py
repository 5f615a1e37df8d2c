"""The streamed answer: completion deltas as server-sent events."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

import msgspec
from msgspec import UNSET

from rose.chat.events import ChatEvent, ContentDelta, Finished, ReasoningDelta, ToolCallStart
from rose.chat.events import ToolCallDelta as ArgumentsDelta
from rose.errors import RequestError
from rose.server.chat_completions.answer import AnswerStyle, finish_reason, new_tool_call_id
from rose.server.chat_completions.chunks import ChatCompletionChunk, ChunkChoice, FunctionDelta, Message, ToolCallDelta
from rose.server.chat_completions.convert import as_client_named_it
from rose.server.chat_completions.schema import ChatCompletionRequest
from rose.server.completion import CompletionDelta
from rose.server.errors import to_api_error
from rose.server.generation import Generation
from rose.server.sse import DONE, sse_data

_encoder = msgspec.json.Encoder()


async def stream_answer(
    generation: Generation, style: AnswerStyle, body: ChatCompletionRequest
) -> AsyncGenerator[bytes, None]:
    """The events of the stream; what one engine step brought comes in one piece.

    Headers are long gone here, so a failure becomes an error event, and `[DONE]` follows as after any other end.
    """
    options = body.stream_options
    counts_everywhere = bool(options and options.continuous_usage_stats)
    writer = _ChunkWriter(style, generation if counts_everywhere else None)
    try:
        yield _frames(writer.opening(body.n or 1, generation.prompt_token_ids))
        async with aclosing(generation.deltas()) as deltas:
            async for delta in deltas:
                if frames := _frames(writer.chunks(delta)):
                    yield frames
        if options and options.include_usage:
            yield _frames([style.chunk([], generation.usage)])
    except RequestError as error:
        yield sse_data(to_api_error(as_client_named_it(error, body)).body())
    except Exception as error:
        yield sse_data(to_api_error(error).body())
    yield DONE


def _frames(chunks: "list[ChatCompletionChunk] | Iterator[ChatCompletionChunk]") -> bytes:
    return b"".join([sse_data(_encoder.encode(chunk)) for chunk in chunks])


class _ChunkWriter:
    """Writes deltas as chunks. counted: the generation whose usage so far stands in every chunk, or None."""

    def __init__(self, style: AnswerStyle, counted: Generation | None) -> None:
        self._style = style
        self._counted = counted
        # Ids whose chunk is yet to come, for those that made no text, or text that is left out.
        self._token_ids: dict[int, list[int]] = {}

    def opening(self, num_completions: int, prompt_token_ids: list[int]) -> list[ChatCompletionChunk]:
        """The first chunk of each completion: who speaks, and the prompt's ids if they are wanted."""
        opening = Message(role="assistant", content="")
        with_prompt = prompt_token_ids if self._style.with_token_ids else None
        return [
            self._chunk(ChunkChoice(index=index, delta=opening), with_prompt if index == 0 else None)
            for index in range(num_completions)
        ]

    def chunks(self, delta: CompletionDelta) -> Iterator[ChatCompletionChunk]:
        """A chunk for each event that this API shows."""
        style, index = self._style, delta.index
        self._token_ids.setdefault(index, []).extend(delta.token_ids if style.with_token_ids else ())
        logprobs = list(delta.logprobs)
        for event in delta.events:
            message = self._message(event)
            if message is None:
                continue
            is_end = isinstance(event, Finished)
            carries_logprobs = logprobs and (is_end or isinstance(event, ContentDelta))
            yield self._chunk(
                ChunkChoice(
                    index=index,
                    delta=message,
                    logprobs=style.logprobs(logprobs) if carries_logprobs else None,
                    finish_reason=finish_reason(event.reason) if isinstance(event, Finished) else None,
                    token_ids=style.token_ids(self._token_ids.pop(index, ())),
                )
            )
            if carries_logprobs:
                logprobs = []

    def _message(self, event: ChatEvent) -> Message | None:
        match event:
            case ContentDelta(text):
                return Message(content=text)
            case ReasoningDelta(text):
                fields = self._style.reasoning(text)
                if not fields:
                    return None
                return Message(
                    reasoning=fields.get("reasoning", UNSET), reasoning_content=fields.get("reasoning_content", UNSET)
                )
            case ToolCallStart(index, name):
                function = FunctionDelta(name=name)
                call = ToolCallDelta(index=index, id=new_tool_call_id(), type="function", function=function)
                return Message(tool_calls=[call])
            case ArgumentsDelta(index, arguments):
                return Message(tool_calls=[ToolCallDelta(index=index, function=FunctionDelta(arguments=arguments))])
            case Finished():
                return Message()
            case _:
                return None

    def _chunk(self, choice: ChunkChoice, prompt_token_ids: list[int] | None = None) -> ChatCompletionChunk:
        counts = self._counted.usage if self._counted else None
        return self._style.chunk([choice], counts, prompt_token_ids)
