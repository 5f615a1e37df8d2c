"""The unstreamed answer: all completion deltas, merged."""

from contextlib import aclosing

from msgspec import UNSET

from rose.chat.events import ChatEvent
from rose.chat.merge import MergedAnswer, merge
from rose.server.chat_completions.answer import AnswerStyle, finish_reason, new_tool_call_id
from rose.server.chat_completions.chunks import ChatCompletion, Choice, FunctionDelta, Message, ToolCallDelta
from rose.server.completion import CompletionDelta, ContentLogprob
from rose.server.generation import GenerationRequest, Generator


async def whole_answer(generator: Generator, wanted: GenerationRequest, style: AnswerStyle) -> ChatCompletion:
    """Generate all completions to their end, and answer at once."""
    generation = await generator.start(wanted)
    deltas: list[list[CompletionDelta]] = [[] for _ in range(wanted.sampling_params.n)]
    async with aclosing(generation.deltas()) as arriving:
        async for delta in arriving:
            deltas[delta.index].append(delta)
    choices = [_choice(index, of_one, style) for index, of_one in enumerate(deltas)]
    return style.completion(choices, generation.usage, generation.prompt_token_ids)


def _choice(index: int, deltas: list[CompletionDelta], style: AnswerStyle) -> Choice:
    events: list[ChatEvent] = [event for delta in deltas for event in delta.events]
    logprobs: list[ContentLogprob] = [entry for delta in deltas for entry in delta.logprobs]
    answer = merge(events)
    return Choice(
        index=index,
        message=_message(answer, style),
        logprobs=style.logprobs(logprobs),
        finish_reason=finish_reason(answer.finish_reason),
        token_ids=style.token_ids([token_id for delta in deltas for token_id in delta.token_ids]),
    )


def _message(answer: MergedAnswer, style: AnswerStyle) -> Message:
    calls = [
        ToolCallDelta(id=new_tool_call_id(), type="function", function=FunctionDelta(call.name, call.arguments))
        for call in answer.tool_calls
    ]
    reasoning = style.reasoning(answer.reasoning) if answer.reasoning else {}
    return Message(
        role="assistant",
        content=answer.content or (None if calls else ""),
        refusal=None,
        reasoning=reasoning.get("reasoning", UNSET),
        reasoning_content=reasoning.get("reasoning_content", UNSET),
        tool_calls=calls or UNSET,
    )
