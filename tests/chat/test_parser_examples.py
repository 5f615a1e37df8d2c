"""The table of samples in docs/harmony.md, with both tokenizers."""

import pytest

from tests.chat.parsing import A, calls, parse

EXAMPLES = [
    # sample, engine's reason, reasoning, content, calls, finish reason, rules used
    (
        A + "<|channel|>––commentary to=functions.tide <|constrain|>json<|message|>{}<|call|>",
        "stop", "Need the tide.", "", [("tide", "{}")], "tool_calls", ("name_cut",),
    ),
    (
        A + "<|channel|>commentary to=functions.tide to=functions.tide <|constrain|>json<|message|>{}<|call|>",
        "stop", "Need the tide.", "", [("tide", "{}")], "tool_calls", ("repeated_recipient",),
    ),
    (
        "<|channel|>let me look at this<|message|>x<|end|>"
        "<|start|>assistant<|channel|>final<|message|>High at 4.<|return|>",
        "stop", "x", "High at 4.", [], "stop", ("unknown_channel",),
    ),
    (
        "<|channel|>analysis<|message|>Need the tide.<|end|>commentary to=functions.tide<|message|>{}<|call|>",
        "stop", "Need the tide.", "", [("tide", "{}")], "tool_calls", ("missing_start",),
    ),
    (
        A + ' to=functions.tide<|channel|>analysis <|constrain|>json<|message|>{"p":"Oban"}<|call|>',
        "stop", "Need the tide.", "", [("tide", '{"p":"Oban"}')], "tool_calls", ("recipient_routes_call",),
    ),
    (
        A + "<|channel|>commentary to=functions.tide<|channel|>commentary json<|message|>{}<|call|>",
        "stop", "Need the tide.", "", [("tide", "{}")], "tool_calls", ("bare_content_type",),
    ),
    (
        "<|channel|>final<|message|>High at 4.<|start|>assistant<|channel|>final<|message|> Low at 10.<|return|>",
        "stop", "", "High at 4. Low at 10.", [], "stop", ("missing_end", "several_finals"),
    ),
    (
        "<|channel|>final<|message|>High at",
        "length", "", "High at", [], "length", (),
    ),
    (
        A + '<|channel|>commentary to=functions.tide <|constrain|>json<|message|>{"p":"Ob',
        "length", "Need the tide.", '{"p":"Ob', [], "length", ("cut_in_tool_call",),
    ),
    (
        "<|channel|>commentary<|message|>I will look it up.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.tide <|constrain|>json<|message|>{}<|call|>",
        "stop", "", "I will look it up.", [("tide", "{}")], "tool_calls", (),
    ),
]  # fmt: skip


@pytest.mark.parametrize("example", EXAMPLES, ids=range(1, len(EXAMPLES) + 1))
def test_example(tokenizer, example):
    sample, reason, reasoning, content, tool_calls, finish_reason, recovered = example
    answer = parse(tokenizer, sample, reason)
    assert (answer.reasoning, answer.content, calls(answer)) == (reasoning, content, tool_calls)
    assert (answer.finish_reason, answer.recovered) == (finish_reason, recovered)
