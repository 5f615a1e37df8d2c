"""The rules of docs/chatml.md, each with a sample: for tags that are tokens, and for tags that are spelled."""

import time

import pytest

from rose.chat.chatml.recovery import Recovery
from rose.chat.merge import MergedAnswer
from tests.chat.promises import merged
from tests.chat.subjects import Subject, subject

T = "<think>\nNeed it.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "tide", "arguments": {"p": 1}}\n</tool_call>'
HALF = '<tool_call>\n{"name": "tide", "arguments": {"p": "Ob'


@pytest.fixture(params=["chatml", "chatml-spelled"])
def tried(request) -> Subject:
    return subject(request.param)


def parse(tried: Subject, text: str, reason: str = "stop") -> MergedAnswer:
    return merged(tried.chat.parser(), tried.tokenizer.encode_with_special(text), reason)


def told(answer: MergedAnswer) -> tuple[str, str, list[tuple[str, str]], str, tuple[str, ...]]:
    calls = [(call.name, call.arguments) for call in answer.tool_calls]
    return answer.reasoning, answer.content, calls, answer.finish_reason, answer.recovered


TIDE = [("tide", '{"p": 1}')]

SAMPLES = [
    # well-formed
    ("High at 4.<|im_end|>", "", "High at 4.", [], "stop", ()),
    ("\n\nHigh\n<|im_end|>", "", "\n\nHigh\n", [], "stop", ()),
    (f"{T}High at 4.<|im_end|>", "Need it.", "High at 4.", [], "stop", ()),
    (f"{T}{CALL}", "Need it.", "", TIDE, "tool_calls", ()),
    (f"{T}I look.\n{CALL}<|im_end|>", "Need it.", "I look.", TIDE, "tool_calls", ()),
    ("<think>a</think>b<|endoftext|>", "a", "b", [], "stop", ()),
    ("<think>\n\n</think>\n\nb<|im_end|>", "", "b", [], "stop", ()),
    (f"{T}a\n<think>b</think>c", "Need it.b", "ac", [], "stop", ()),
    ('<tool_call>{"name":"tide","arguments":{}}</tool_call>', "", "", [("tide", "{}")], "tool_calls", ()),
    # where reasoning and messages end
    (f"<think>Need it.\n{CALL}", "Need it.", "", TIDE, "tool_calls", ("missing_think_end",)),
    ("<think>Need it.<|im_end|>", "Need it.", "", [], "stop", ("missing_think_end", "only_reasoning")),
    (f"{T}<|im_end|>", "Need it.", "", [], "stop", ("only_reasoning",)),
    ("a<|im_start|>assistant\nb<|im_end|>", "", "ab", [], "stop", ("missing_end",)),
    (f"a<|im_start|>assistant\n{T}b", "Need it.", "ab", [], "stop", ("missing_end",)),
    ("a<|im_start|>user\nb<|im_end|>", "", "a", [], "stop", ("missing_end", "foreign_role")),
    (f"{CALL}<|im_start|>user\n", "", "", TIDE, "tool_calls", ()),
    ("<|im_start|>High at 4.<|im_end|>", "", "High at 4.", [], "stop", ("missing_end", "kept_as_text")),
    ("<|im_start|>assistant<|im_end|>", "", "", [], "stop", ("missing_end",)),
    # calls
    (f"{CALL}\n{CALL}<|im_end|>", "", "", TIDE, "tool_calls", ()),
    (CALL.removesuffix("\n</tool_call>") + "<|im_end|>", "", "", TIDE, "tool_calls", ("missing_call_end",)),
    (CALL.removesuffix("</tool_call>") + CALL, "", "", TIDE, "tool_calls", ("missing_call_end",)),
    (CALL.replace("}}", '}, "id": 7}'), "", "", TIDE, "tool_calls", ("stray_text",)),
    ('<tool_call>{"arguments": {"p": 1}, "name": "tide"}</tool_call>', "", "", TIDE, "tool_calls", ("odd_call",)),
    ('<tool_call>{"name": "tide", "parameters": {"p": 1}}</tool_call>', "", "", TIDE, "tool_calls", ("odd_call",)),
    ('<tool_call>{"name": "tide", "arguments": "{\\"p\\": 1}"}</tool_call>', "", "", TIDE, "tool_calls", ("odd_call",)),
    ('<tool_call>{"name": "tide"}</tool_call>', "", "", [("tide", "{}")], "tool_calls", ("odd_call",)),
    ("<tool_call>tide</tool_call>", "", "<tool_call>tide</tool_call>", [], "stop", ("not_a_call",)),
    ("a\n<tool_call></tool_call>b", "", "a\n<tool_call></tool_call>b", [], "stop", ("not_a_call",)),
    ('<tool_call>{"name": ""}</tool_call>', "", '<tool_call>{"name": ""}</tool_call>', [], "stop", ("not_a_call",)),
    (
        "<think>a\n<tool_call>b</think>\n\nc",
        "a\n<tool_call>b",
        "c",
        [],
        "stop",
        ("not_a_call",),
    ),
    (
        HALF + "<|im_end|>",
        "",
        "",
        [("tide", '{"p": "Ob')],
        "tool_calls",
        ("missing_call_end", "arguments_not_json"),
    ),
]


@pytest.mark.parametrize(("sample", "reasoning", "content", "calls", "reason", "recovered"), SAMPLES)
def test_rules(tried: Subject, sample, reasoning, content, calls, reason, recovered) -> None:
    assert told(parse(tried, sample)) == (reasoning, content, calls, reason, recovered)


@pytest.mark.parametrize(
    ("sample", "reasoning", "content", "recovered"),
    [
        ("High at", "", "High at", ()),
        ("<think>Need", "Need", "", ()),
        (f"{T}", "Need it.", "", ()),
        (HALF, "", '{"p": "Ob', ("cut_in_tool_call",)),
        (CALL.removesuffix("\n</tool_call>"), "", '{"p": 1}', ("cut_in_tool_call",)),
        ('<tool_call>\n{"name": "ti', "", '<tool_call>\n{"name": "ti', ("not_a_call",)),
        ("a<|im_start|>assis", "", "a", ("missing_end",)),
    ],
)
def test_cut_by_length(tried: Subject, sample: str, reasoning: str, content: str, recovered) -> None:
    assert told(parse(tried, sample, "length")) == (reasoning, content, [], "length", recovered)


def test_tags_with_tokens_are_text_when_they_are_spelled() -> None:
    tried = subject("chatml")
    text = f"<think>a</think>\n{CALL}"
    assert merged(tried.chat.parser(), tried.tokenizer.encode(text)).content == text
    inside = tried.tokenizer.encode_with_special('<tool_call>{"name": "tide", "arguments": {"p": "')
    sample = [*inside, *tried.tokenizer.encode("</tool_call>"), *tried.tokenizer.encode_with_special('"}}</tool_call>')]
    assert merged(tried.chat.parser(), sample).tool_calls[0].arguments == '{"p": "</tool_call>"}'


@pytest.mark.parametrize(
    "text",
    [
        f"Say {CALL}",
        "a <think> b",
        "</think> a",
        "</tool_call> a",
        "a < b <think",
        "<tool_calls>",
        '{"a": "<tool_call>"}',
        "`<tool_call>`\n",
    ],
)
def test_spelled_tags_in_the_midst_of_a_line_are_text(text: str) -> None:
    assert told(parse(subject("chatml-spelled"), text)) == ("", text, [], "stop", ())


@pytest.mark.parametrize(
    "arguments",
    ['{"p": "</tool_call>"}', '{"p": "\\"</tool_call>\\\\"}', '{"p": {"q": ["}", "<tool_call>"]}}', '{"}": "]"}'],
)
def test_spelled_tags_inside_strings_are_text(arguments: str) -> None:
    tried = subject("chatml-spelled")
    answer = parse(tried, f'<tool_call>\n{{"name": "tide", "arguments": {arguments}}}\n</tool_call>')
    assert told(answer) == ("", "", [("tide", arguments)], "tool_calls", ())


def test_a_quotation_mark_too_many_swallows_only_its_line() -> None:
    sample = '<tool_call>\n{"name": "tide", "arguments": {"p": "Ob}}"\n</tool_call>\nHigh at 4.'
    answer = parse(subject("chatml-spelled"), sample)
    assert [call.name for call in answer.tool_calls] == ["tide"]
    assert "High" not in answer.tool_calls[0].arguments


def test_a_template_that_opens_the_reasoning() -> None:
    tried = subject("chatml-thinking")
    assert told(parse(tried, "Need it.\n</think>\n\nHigh.<|im_end|>")) == ("Need it.", "High.", [], "stop", ())
    assert told(parse(tried, "Need", "length")) == ("Need", "", [], "length", ())
    assert told(parse(tried, f"So.</think>{CALL}")) == ("So.", "", TIDE, "tool_calls", ())


def test_characters_split_over_tokens(tried: Subject) -> None:
    smile = tried.tokenizer.encode("😀")
    assert len(smile) == 4
    assert told(merged(tried.chat.parser(), smile)) == ("", "😀", [], "stop", ())
    answer = merged(tried.chat.parser(), [*smile[:2], *tried.tokenizer.encode_with_special("<|im_end|>")])
    assert told(answer) == ("", "\ufffd", [], "stop", ("incomplete_character",))


def test_ids_without_meaning_are_dropped(tried: Subject) -> None:
    hi = tried.tokenizer.encode("hi")
    assert told(merged(tried.chat.parser(), [-1, *hi, 10**9])) == ("", "hi", [], "stop", ("stray_control",))


def test_half_a_surrogate_pair_in_a_name_can_be_sent(tried: Subject) -> None:
    answer = parse(tried, '<tool_call>{"name": "\\ud83d", "arguments": "\\ud83d"}</tool_call>')
    assert told(answer)[2] == [("\ufffd", "\ufffd")]


def test_stray_tags_are_dropped() -> None:
    tried = subject("chatml")
    assert told(parse(tried, "a</think>b</tool_call>c")) == ("", "abc", [], "stop", ("stray_tag",))
    assert told(parse(tried, "<think>a<think>b</think>c")) == ("ab", "c", [], "stop", ("stray_tag",))


def test_every_rule_has_a_sample() -> None:
    seen = {rule for *_, recovered in SAMPLES for rule in recovered}
    elsewhere = {"cut_in_tool_call", "incomplete_character", "stray_control", "stray_tag"}
    assert seen | elsewhere == {rule.value for rule in Recovery}


def test_the_cost_of_nonsense_is_linear(tried: Subject) -> None:
    pieces = ["<", "<think", "\n<tool_call>", "\n", '"', "\\", "{", "<|im_start|>", "<tool_call>x</tool_call>"]
    pieces += ["</think>", "<think>a</think>", "<|im_start|>assistant\n", '\n<tool_call>{"name": "', "word "]
    for piece in pieces:
        tokens = tried.tokenizer.encode_with_special(piece) * 3_000
        begin = time.process_time()
        merged(tried.chat.parser(), tokens)
        assert (time.process_time() - begin) / len(tokens) < 100e-6, piece
