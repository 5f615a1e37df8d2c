"""A test or more for each recovery rule of docs/harmony.md, by its number there."""

import pytest

from rose.chat.events import (
    ContentDelta,
    Finished,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from rose.chat.harmony.format import HarmonyFormat
from rose.chat.harmony.recovery import Recovery
from rose.chat.merge import merge
from tests.chat.parsing import A, calls, events_of, parse

CALL_FORMS = [
    "<|channel|>commentary to=functions.tide <|constrain|>json",
    "<|channel|>commentary to=functions.tide<|constrain|>json",
    "<|channel|>commentary to=functions.tide <|constrain|> json",
    "<|channel|>commentary to=functions.tide",
    " to=functions.tide<|channel|>commentary <|constrain|>json",
    " to=functions.tide<|channel|>commentary",
]


@pytest.mark.parametrize("header", CALL_FORMS)
def test_the_usual_ways_to_write_a_call_need_no_rule(tokenizer, header):
    answer = parse(tokenizer, f"{A}{header}<|message|>{{}}<|call|>")
    assert calls(answer) == [("tide", "{}")]
    assert answer.recovered == ()


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>analysis to=functions.tide",
        " to=functions.tide<|channel|>analysis",
        "<|channel|>final to=functions.tide",
        " to=functions.tide",
        "<|channel|>lookup to=functions.tide",
        "<|channel|> to=functions.tide",
        "<|channel|>commentary<|constrain|>json to=functions.tide",
        "<|channel|>commentary functions.tide",
    ],
)
def test_rule_1_the_recipient_routes_the_call(tokenizer, header):
    assert calls(parse(tokenizer, f"{A}{header}<|message|>{{}}<|call|>")) == [("tide", "{}")]


@pytest.mark.parametrize(
    "header",
    [
        " to=functions.tide<|channel|>commentary to=functions.tide",
        "<|channel|>commentary to=functions.tide to=functions.tide to=functions.tide",
        "<|channel|>commentary to=functions.tideto=functions.tide",
        "<|channel|>commentaryto=functions.tide to=functions.tide",
    ],
)
def test_rule_1_repeats_collapse(tokenizer, header):
    answer = parse(tokenizer, f"{A}{header} <|constrain|>json<|message|>{{}}<|call|>")
    assert calls(answer) == [("tide", "{}")]
    assert "repeated_recipient" in answer.recovered


@pytest.mark.parametrize("recipient", ["assistant", "user", "all", "functions", "functions.", ""])
def test_rule_1_not_every_recipient_is_a_tool(tokenizer, recipient):
    answer = parse(tokenizer, f"<|channel|>commentary to={recipient}<|message|>High at 4.<|return|>")
    assert (answer.content, answer.tool_calls, answer.finish_reason) == ("High at 4.", (), "stop")


def test_rule_1_other_tools_keep_their_whole_name(tokenizer):
    answer = parse(tokenizer, A + " to=browser.search<|channel|>analysis code<|message|>tide Oban<|call|>")
    assert calls(answer) == [("browser.search", "tide Oban")]
    assert "arguments_not_json" not in answer.recovered, "only functions promise JSON"


def test_rule_1_calls_may_follow_each_other(tokenizer):
    call = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{{}}<|call|>"
    answer = parse(tokenizer, call.format("a") + "<|start|>assistant" + call.format("b"))
    assert calls(answer) == [("a", "{}"), ("b", "{}")]


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>––commentary to=functions.tide",
        "<|channel|>–– commentary to=functions.tide",
        "<|channel|>“Commentary”: to=functions.tide",
        "<|channel|>commentaryjson to=functions.tide",
        "<|channel|>commentary to=functions.tide\n\nfoo",
        "<|channel|>commentary\tto=functions.tide\tbar baz",
    ],
)
def test_rule_2_names_are_cut_clean(tokenizer, header):
    answer = parse(tokenizer, f"{header}<|message|>{{}}<|call|>")
    assert calls(answer) == [("tide", "{}")]


def test_rule_2_control_text_in_ordinary_characters_cuts_a_name(tokenizer):
    tokens = [
        tokenizer.special_id("<|channel|>"),
        *tokenizer.encode("commentary to=functions.tide<|channel|>commentary"),
        *tokenizer.encode_with_special("<|message|>{}<|call|>"),
    ]
    answer = merge(events_of(tokenizer, tokens))
    assert calls(answer) == [("tide", "{}")]
    assert "name_cut" in answer.recovered


def test_rule_2_the_whole_header_comes_first(tokenizer):
    """A call is announced once, when its header is whole: no half of a name is ever sent."""
    events = events_of(tokenizer, tokenizer.encode_with_special(A + CALL_FORMS[0] + "<|message|>{}<|call|>"))
    assert [event for event in events if isinstance(event, ToolCallStart)] == [ToolCallStart(0, "tide")]


def test_rule_3_an_unknown_channel_before_the_answer_is_reasoning(tokenizer):
    answer = parse(
        tokenizer, "<|channel|>thoughts<|message|>x<|end|><|start|>assistant<|channel|>final<|message|>y<|return|>"
    )
    assert (answer.reasoning, answer.content, answer.recovered) == ("x", "y", ("unknown_channel",))


@pytest.mark.parametrize("channel", ["<|channel|>reply", "<|channel|>", "", "<|channel|>––"])
@pytest.mark.parametrize("end", ["<|return|>", "<|end|>", ""])
def test_rule_3_an_unknown_or_missing_channel_on_the_last_message_is_content(tokenizer, channel, end):
    answer = parse(tokenizer, f"{A}{channel}<|message|>High at 4.{end}")
    assert (answer.reasoning, answer.content) == ("Need the tide.", "High at 4.")
    assert answer.recovered[-1] in ("unknown_channel", "missing_channel")


def test_rule_3_the_last_message_is_the_last_with_text(tokenizer):
    empty = "<|start|>assistant<|channel|>final<|message|>"
    answer = parse(tokenizer, f"<|channel|>reply<|message|>High at 4.<|end|>{empty}<|return|>")
    assert (answer.reasoning, answer.content) == ("", "High at 4.")


def test_rule_3_of_two_unknown_ones_the_last_is_content(tokenizer):
    answer = parse(tokenizer, "<|channel|>one<|message|>x<|end|><|start|>assistant<|channel|>two<|message|>y<|return|>")
    assert (answer.reasoning, answer.content) == ("x", "y")


def test_rule_3_before_a_call_it_is_reasoning(tokenizer):
    answer = parse(tokenizer, f"<|channel|>one<|message|>x<|end|><|start|>assistant{CALL_FORMS[0]}<|message|><|call|>")
    assert (answer.reasoning, answer.content, calls(answer)) == ("x", "", [("tide", "")])


def test_rule_3_a_refusal_without_any_header_is_content(tokenizer):
    for text in ("I'm sorry, I can't help with that.", "No", " I can't."):
        assert parse(tokenizer, text + "<|return|>").content == text.strip()
        assert parse(tokenizer, A + text).content == text.strip()


@pytest.mark.parametrize(
    "start",
    [
        "commentary to=functions.tide",
        "<|channel|>commentary to=functions.tide",
        " to=functions.tide",
        "assistant<|channel|>commentary to=functions.tide",
        "assistant to=functions.tide<|channel|>commentary",
        "commentary to=functions.tide json",
    ],
)
def test_rule_4_a_call_without_its_start(tokenizer, start):
    answer = parse(tokenizer, f"<|channel|>analysis<|message|>x<|end|>{start}<|message|>{{}}<|call|>")
    assert (answer.reasoning, calls(answer)) == ("x", [("tide", "{}")])
    assert "missing_start" in answer.recovered


@pytest.mark.parametrize(
    "start", ["final<|message|>", "<|channel|>final<|message|>", "<|message|>", "Final:<|message|>", "final "]
)
def test_rule_4_an_answer_without_its_start(tokenizer, start):
    answer = parse(tokenizer, f"<|channel|>analysis<|message|>x<|end|>{start}High at 4.<|return|>")
    assert (answer.reasoning, answer.content) == ("x", "High at 4.")
    assert "missing_start" in answer.recovered


@pytest.mark.parametrize("stray", ["junk", "\n", "<|reserved_1|>", "<|message|><|end|>", "<|end|>", "<|constrain|>"])
def test_rule_4_a_stray_token_before_the_start_is_dropped(tiny, stray):
    answer = parse(
        tiny,
        f"<|channel|>analysis<|message|>x<|end|>{stray}<|start|>assistant<|channel|>final<|message|>y<|return|>",
    )
    assert (answer.reasoning, answer.content) == ("x", "y")


def test_rule_4_more_than_a_word_between_messages_is_not_lost(tokenizer):
    answer = parse(tokenizer, A[: -len("<|start|>assistant")] + "The answer follows." + A[A.index("<|start|>") :])
    assert answer.content == "The answer follows."


@pytest.mark.parametrize("start", ["<|start|><|channel|>final", "<|start|>final", "<|start|>assistantfinal"])
def test_rule_4_a_start_without_a_role(tokenizer, start):
    answer = parse(tokenizer, f"<|channel|>analysis<|message|>x<|end|>{start}<|message|>y<|return|>")
    assert (answer.reasoning, answer.content) == ("x", "y")


@pytest.mark.parametrize("start", ["<|start|>assistant<|channel|>final<|message|>", "<|channel|>final<|message|>"])
def test_rule_5_a_missing_end_swallows_nothing(tokenizer, start):
    answer = parse(tokenizer, f"<|channel|>analysis<|message|>x{start}y<|return|>")
    assert (answer.reasoning, answer.content, answer.recovered) == ("x", "y", ("missing_end",))


def test_rule_5_a_call_that_runs_into_the_next_message_is_complete(tokenizer):
    answer = parse(tokenizer, f"{CALL_FORMS[0]}<|message|>{{}}<|start|>assistant<|channel|>final<|message|>y<|return|>")
    assert (calls(answer), answer.content, answer.finish_reason) == ([("tide", "{}")], "y", "tool_calls")


@pytest.mark.parametrize("content_type", ["<|constrain|>json", " <|constrain|>json", " json", " code", "<|constrain|>"])
def test_rule_6_a_content_type_is_no_recipient(tokenizer, content_type):
    called = parse(tokenizer, f"<|channel|>commentary to=functions.tide{content_type}<|message|>{{}}<|call|>")
    assert calls(called) == [("tide", "{}")]
    said = parse(tokenizer, f"<|channel|>final{content_type}<|message|>{{}}<|return|>")
    assert (said.content, said.tool_calls) == ("{}", ())


@pytest.mark.parametrize(
    "header",
    [
        "",
        "ana",
        "<|channel|>",
        "<|channel|>comm",
        "<|channel|>final",
        "<|channel|>some other",
        "<|channel|>commentary to",
        "<|channel|>commentary to=functions.ti",
        " to=functions.tide<|channel|>",
        CALL_FORMS[0],
    ],
)
@pytest.mark.parametrize("reason", ["length", "abort", "error"])
def test_rule_7_cut_in_a_header_gives_what_came_before(tokenizer, header, reason):
    answer = parse(tokenizer, A + header, reason)
    assert (answer.reasoning, answer.content, answer.tool_calls) == ("Need the tide.", "", ())
    assert answer.finish_reason == reason


def test_rule_7_cut_in_a_body_gives_the_part(tokenizer):
    for channel, field in (("analysis", "reasoning"), ("commentary", "content"), ("final", "content")):
        answer = parse(tokenizer, f"<|channel|>{channel}<|message|>High a", "length")
        assert getattr(answer, field) == "High a"
        assert (answer.finish_reason, answer.recovered) == ("length", ())


def test_rule_7_half_a_call_is_no_call(tokenizer):
    events = events_of(tokenizer, tokenizer.encode_with_special(CALL_FORMS[0] + '<|message|>{"p'), "length")
    assert ToolCallEnd(0, complete=False) in events
    assert (merge(events).content, merge(events).tool_calls) == ('{"p', ())


def test_rule_7_a_complete_call_before_the_cut_is_reported(tokenizer):
    answer = parse(tokenizer, CALL_FORMS[0] + "<|message|>{}<|call|><|start|>assistant<|channel|>fin", "length")
    assert (calls(answer), answer.finish_reason) == ([("tide", "{}")], "length")


@pytest.mark.parametrize("arguments", ['{"p": Oban}', "", "Oban", '{"p":"Ob', "[" * 3000])
def test_rule_8_arguments_that_are_not_json_are_passed_on(tokenizer, arguments):
    answer = parse(tokenizer, f"{CALL_FORMS[0]}<|message|>{arguments}<|call|>")
    assert calls(answer) == [("tide", arguments)]
    assert answer.recovered == ("arguments_not_json",)


@pytest.mark.parametrize("end", ["<|call|>", "<|end|>", "<|return|>", "<|endoftext|>", ""])
def test_a_call_is_complete_however_the_turn_ends(tokenizer, end):
    answer = parse(tokenizer, f"{CALL_FORMS[0]}<|message|>{{}}{end}")
    assert (calls(answer), answer.finish_reason) == ([("tide", "{}")], "tool_calls")


def test_rule_9_two_finals_are_joined_in_order(tokenizer):
    final = "<|channel|>final<|message|>"
    answer = parse(tokenizer, f"{final}a <|end|><|start|>assistant{final}<|end|><|start|>assistant{final}b<|return|>")
    assert (answer.content, answer.recovered) == ("a b", ("several_finals",))


@pytest.mark.parametrize("end", ["", "<|end|>", "<|return|>", "<|end|><|start|>assistant<|channel|>final<|message|>"])
def test_rule_9_only_reasoning(tokenizer, end):
    answer = parse(tokenizer, f"<|channel|>analysis<|message|>Need the tide.{end}")
    assert (answer.reasoning, answer.content, answer.finish_reason) == ("Need the tide.", "", "stop")
    assert answer.recovered == ("only_reasoning",)


def test_rule_10_a_split_character_is_held_back(tiny):
    events = events_of(tiny, tiny.encode_with_special("<|channel|>final<|message|>é<|return|>"))
    assert events == [ContentDelta("é"), Finished("stop")]


@pytest.mark.parametrize("header", ["<|channel|>final", "<|channel|>other", CALL_FORMS[0]])
def test_rule_10_an_incomplete_character_becomes_one_replacement(tiny, header):
    tokens = [*tiny.encode_with_special(header + "<|message|>a"), *tiny.encode("😀")[:3]]
    answer = merge(events_of(tiny, tokens, "length"))
    assert answer.content == "a\ufffd"
    assert "incomplete_character" in answer.recovered
    answer = merge(events_of(tiny, [*tokens, tiny.special_id("<|return|>")]))
    assert (answer.content or answer.tool_calls[0].arguments) == "a\ufffd"


@pytest.mark.parametrize(
    "foreign",
    ["user", "system", "developer", "tool", "functions.tide to=assistant<|channel|>commentary", "banana", "user:bob"],
)
@pytest.mark.parametrize("start", ["<|start|>", "<|end|><|start|>"])
def test_rule_12_the_model_speaks_for_nobody_else(tokenizer, foreign, start):
    after = "<|start|>assistant<|channel|>final<|message|>more<|return|>"
    answer = parse(tokenizer, f"<|channel|>final<|message|>High at 4.{start}{foreign}<|message|>hidden<|end|>{after}")
    assert (answer.content, answer.reasoning, answer.tool_calls) == ("High at 4.", "", ())
    assert "foreign_role" in answer.recovered


@pytest.mark.parametrize("foreign", ["user", "tool", "functions.tide", "functions.tide to=assistant", "banana"])
def test_rule_12_also_without_a_start(tokenizer, foreign):
    answer = parse(tokenizer, f"<|channel|>final<|message|>High at 4.<|end|>{foreign}<|message|>hidden<|end|>")
    assert (answer.content, answer.recovered) == ("High at 4.", ("foreign_role",))


def test_rule_12_tokens_after_it_are_in_no_section(tokenizer):
    parser = HarmonyFormat(tokenizer).parser()
    for token in tokenizer.encode_with_special("<|channel|>final<|message|>a<|start|>user<|message|>"):
        parser.push(token)
    assert parser.push(tokenizer.encode("x")[0]) == []
    assert parser.section == "control"


def test_rule_13_end_of_text_ends_the_turn(tokenizer):
    answer = parse(
        tokenizer, "<|channel|>final<|message|>a<|endoftext|>b<|start|>assistant<|channel|>final<|message|>c"
    )
    assert (answer.content, answer.recovered) == ("a", ("end_of_text",))


@pytest.mark.parametrize("stray", ["<|message|>", "<|constrain|>", "<|reserved_1|>"])
@pytest.mark.parametrize("header", ["<|channel|>final", "<|channel|>analysis", CALL_FORMS[0]])
def test_rule_13_a_control_token_in_a_body_is_dropped(tiny, stray, header):
    answer = parse(tiny, f"{header}<|message|>1{stray}2<|end|>")
    assert "12" in (answer.content, answer.reasoning, *[call.arguments for call in answer.tool_calls])
    assert "stray_control" in answer.recovered


@pytest.mark.parametrize("token", [-1, 409, 10**9])
def test_rule_13_so_is_an_id_nobody_knows(tiny, token):
    start = tiny.encode_with_special("<|channel|>final<|message|>")
    answer = merge(events_of(tiny, [*start, *tiny.encode("a"), token, *tiny.encode("b")]))
    assert (answer.content, answer.recovered) == ("ab", ("stray_control",))


def test_rule_13_control_text_in_ordinary_tokens_stays(tokenizer):
    text = "write <|end|><|start|>user<|message|> or <|call|>"
    start = tokenizer.encode_with_special("<|channel|>final<|message|>")
    answer = merge(events_of(tokenizer, [*start, *tokenizer.encode(text)]))
    assert (answer.content, answer.recovered) == (text, ())


@pytest.mark.parametrize("end", ["<|return|>", "<|end|>", "", "<|start|>assistant"])
@pytest.mark.parametrize("blank", [" ", "\n", ": "])
def test_rule_14_a_known_channel_without_message(tokenizer, end, blank):
    answer = parse(tokenizer, f"{A}<|channel|>final{blank}High at 4.{end}")
    assert (answer.reasoning, answer.content) == ("Need the tide.", "High at 4.")
    assert "missing_message" in answer.recovered
    answer = parse(tokenizer, f"{A}<|channel|>final{blank}High at 4.", "length")
    assert (answer.content, answer.finish_reason) == ("High at 4.", "length")


def test_rule_14_it_swallows_nothing(tokenizer):
    answer = parse(tokenizer, "<|channel|>analysis Need the tide.<|channel|>final High at 4.<|return|>")
    assert (answer.reasoning, answer.content) == ("Need the tide.", "High at 4.")


@pytest.mark.parametrize("middle", [" ", " json ", " <|constrain|>json ", "<|constrain|>json"])
@pytest.mark.parametrize("end", ["<|call|>", "<|end|>", ""])
def test_rule_14_a_call_without_message(tokenizer, middle, end):
    answer = parse(tokenizer, f'{A}<|channel|>commentary to=functions.tide{middle}{{"p":1}}{end}')
    assert calls(answer) == [("tide", '{"p":1}')]


def test_rule_14_a_call_without_message_that_was_cut(tokenizer):
    answer = parse(tokenizer, A + '<|channel|>commentary to=functions.tide {"p', "length")
    assert (answer.content, answer.tool_calls) == ('{"p', ())


@pytest.mark.parametrize("sample", ["<|channel|>final", "<|channel|>let me look<|message|>", "<|channel|>let me look"])
def test_the_promise_what_means_nothing_is_kept_as_text(tokenizer, sample):
    answer = parse(tokenizer, sample + "<|return|>")
    assert answer.content == sample.replace("<|channel|>", "").replace("<|message|>", "")


def test_a_well_formed_empty_answer_stays_empty(tokenizer):
    answer = parse(tokenizer, "<|channel|>final<|message|><|return|>")
    assert (answer.content, answer.recovered) == ("", ())


def test_streams_early(tokenizer):
    """Text goes out with its token and a call with its header; only a doubtful message waits."""
    sample = f"{A}{CALL_FORMS[0]}<|message|>{{}}<|call|>"
    chat = HarmonyFormat(tokenizer).parser()
    seen = [chat.push(token) for token in tokenizer.encode_with_special(sample)]
    body = tokenizer.encode("Need the tide.")
    assert sum(isinstance(event, ReasoningDelta) for events in seen for event in events) == len(body)
    assert seen[-len(tokenizer.encode("{}")) - 2] == [ToolCallStart(0, "tide")]
    assert seen[-2] == [ToolCallDelta(0, "{}" if len(tokenizer.encode("{}")) == 1 else "}")]
    assert seen[-1] == [ToolCallEnd(0, complete=True)]


def test_sections(tokenizer):
    sample = f"{A}<|channel|>final<|message|>High<|end|><|start|>assistant{CALL_FORMS[0]}<|message|>{{}}<|call|>"
    parser = HarmonyFormat(tokenizer).parser()
    found: dict[str, list[int]] = {}
    assert parser.section == "control"
    for token in tokenizer.encode_with_special(sample):
        parser.push(token)
        found.setdefault(parser.section, []).append(token)
    assert tokenizer.decode(found["reasoning"]) == "Need the tide."
    assert tokenizer.decode(found["content"]) == "High"
    assert tokenizer.decode(found["tool_call"]) == "{}"
    assert "<|start|>assistant<|channel|>" in tokenizer.decode(found["control"], keep_special=True)


def test_rule_names_are_short_and_different():
    names = [rule.value for rule in Recovery]
    assert len(set(names)) == len(names) == len(Recovery.__members__)
    assert all(name.replace("_", "").isalpha() and name.islower() for name in names)
