import pytest

from rose.chat.events import ContentDelta, Finished, ReasoningDelta, ToolCallDelta, ToolCallEnd, ToolCallStart
from rose.chat.merge import MergedAnswer, MergedToolCall, merge


def test_adds_up():
    events = [
        ReasoningDelta("Need "),
        ReasoningDelta("it."),
        ContentDelta("One moment."),
        ToolCallStart(0, "tide"),
        ToolCallDelta(0, "{"),
        ToolCallDelta(0, "}"),
        ToolCallEnd(0, complete=True),
        Finished("tool_calls", ("name_cut",)),
    ]
    expected = MergedAnswer("Need it.", "One moment.", (MergedToolCall("tide", "{}"),), "tool_calls", ("name_cut",))
    assert merge(events) == expected


def test_a_call_that_was_cut_off_becomes_text():
    events = [ContentDelta("a"), ToolCallStart(0, "tide"), ToolCallDelta(0, "{"), ToolCallEnd(0, complete=False)]
    assert merge([*events, Finished("length")]) == MergedAnswer("", "a{", (), "length", ())


def test_a_stream_without_an_end_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="Finished"):
        merge([ContentDelta("a")])
