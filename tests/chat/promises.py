"""What every parser keeps to, whatever a model samples. Checked by hypothesis and by the fuzzer alike."""

from collections.abc import Callable, Sequence

from rose.chat.events import (
    ChatEvent,
    ContentDelta,
    Finished,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from rose.chat.format import StreamParser
from rose.chat.merge import MergedAnswer, merge
from rose.chat.tokenizer import Tokenizer

REASONS = ("stop", "length", "abort", "error")
SECTIONS = frozenset({"control", "reasoning", "content", "tool_call"})


def events_of(parser: StreamParser, tokens: Sequence[int], reason: str = "stop") -> list[ChatEvent]:
    events = []
    for token in tokens:
        events += parser.push(token)
        assert parser.section in SECTIONS
    return events + parser.finish(reason)


def merged(parser: StreamParser, tokens: Sequence[int], reason: str = "stop") -> MergedAnswer:
    return merge(events_of(parser, tokens, reason))


def is_empty(answer: MergedAnswer) -> bool:
    return not (answer.content or answer.reasoning or answer.tool_calls)


def check_events(events: Sequence[ChatEvent], reason: str) -> None:
    """The form of a completion's events, for the engine's `reason`."""
    assert [event for event in events if isinstance(event, Finished)] == events[-1:]
    complete = any(isinstance(event, ToolCallEnd) and event.complete for event in events)
    assert events[-1].reason == (("tool_calls" if complete else "stop") if reason == "stop" else reason)
    assert len(set(events[-1].recovered)) == len(events[-1].recovered)
    check_calls(events)


def check_calls(events: Sequence[ChatEvent]) -> None:
    """Calls are numbered from 0, one at a time, each begun and ended; no delta is empty."""
    open_call, number = False, 0
    for event in events:
        match event:
            case ToolCallStart():
                assert not open_call
                assert event.index == number
                assert event.name.strip() == event.name != ""
                event.name.encode()  # a server must be able to send it
                open_call = True
            case ToolCallDelta():
                assert open_call
                assert event.index == number
                assert event.arguments
                event.arguments.encode()
            case ToolCallEnd():
                assert open_call
                assert event.index == number
                open_call, number = False, number + 1
            case ContentDelta() | ReasoningDelta():
                assert event.text
                event.text.encode()
                assert not open_call
    assert not open_call


def bytes_of_tokens(tokenizer: Tokenizer) -> list[list[int]]:
    """For each id, the ids that spell it byte by byte; itself for an added token, which is one whatever its text."""
    data = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    single = {text: token for token, text in enumerate(data) if len(text) == 1}
    added = {tokenizer.special_id(tokenizer.decode([token], keep_special=True)) for token in range(len(data))}
    return [
        [token] if token in added or not text else [single[bytes([byte])] for byte in text]
        for token, text in enumerate(data)
    ]


def check_promises(
    new_parser: Callable[[], StreamParser],
    tokens: Sequence[int],
    finest: Sequence[int],
    reason: str,
    *,
    has_text: bool,
) -> None:
    """Never an exception, well-formed events, never nothing where there was text, and the same however it is cut.

    finest: the same stream, its text cut into single bytes. has_text: whether the answer must not be empty.
    """
    events = events_of(new_parser(), tokens, reason)
    check_events(events, reason)
    answer = merge(events)
    if has_text and "foreign_role" not in answer.recovered:
        assert not is_empty(answer)
    assert merged(new_parser(), finest, reason) == answer
