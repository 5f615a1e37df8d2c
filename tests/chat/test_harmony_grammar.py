"""The grammar of the whole turn, walked by llguidance's matcher token by token."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from rose.chat.answer_format import (
    AnswerFormat,
    ChoiceFormat,
    GrammarFormat,
    JsonFormat,
    RegexFormat,
    ToolChoice,
)
from rose.chat.conversation import Conversation, FunctionTool, Message
from rose.chat.harmony.format import HarmonyFormat
from rose.chat.tokenizer import Tokenizer
from rose.engine.worker.grammar_tokenizer import TokenizerFile
from rose.errors import RequestError

SCHEMA = {
    "type": "object",
    "properties": {"high": {"type": "integer"}, "place": {"enum": ["Oban", "Mallaig"]}},
    "required": ["high", "place"],
    "additionalProperties": False,
}
BODY = '{"high":4,"place":"Oban"}'
PORT = {
    "type": "object",
    "properties": {"port": {"type": "string"}},
    "required": ["port"],
    "additionalProperties": False,
}
TIDE = FunctionTool("tide", parameters=PORT, strict=True)
WIND = FunctionTool("wind", parameters=PORT, strict=True)
LOOSE = FunctionTool("loose")
ODD = FunctionTool('od"d\\ né<|call|>\n{}', parameters=PORT)

THINK = "<|channel|>analysis<|message|>Need the tide.\nLow, too.<|end|><|start|>assistant"
SAY = "<|channel|>commentary<|message|>I will look it up.<|end|><|start|>assistant"
ARGUMENTS = '{"port":"Oban"}'
FINAL = "<|channel|>final<|message|>"

Accepts = Callable[[str | None, str | list[int]], bool]


@pytest.fixture(scope="module")
def vocabulary(tiny_backend, tmp_path_factory) -> LLTokenizer:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tiny_backend.save(str(file))
    return TokenizerFile(file, 512).load()


@pytest.fixture
def accepts(vocabulary: LLTokenizer, tiny: Tokenizer) -> Accepts:
    """Whether a turn, given as trusted text or as ids, follows a grammar to its end."""

    def walk(grammar: str | None, turn: str | list[int]) -> bool:
        assert grammar is not None
        matcher = LLMatcher(vocabulary, grammar, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        ids = tiny.encode_with_special(turn) if isinstance(turn, str) else turn
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_stopped() and not matcher.is_error()

    return walk


@pytest.fixture(scope="module")
def harmony(tiny: Tokenizer) -> HarmonyFormat:
    return HarmonyFormat(tiny)


def chat(*tools: FunctionTool, wanted: AnswerFormat | None = None) -> Conversation:
    return Conversation(messages=(Message("user", "tide?"),), tools=tools, answer_format=wanted)


def required(*names: str) -> ToolChoice:
    return ToolChoice("required", names or None)


AUTO = ToolChoice()


def test_nothing_demanded_is_no_grammar(harmony: HarmonyFormat) -> None:
    assert harmony.grammar(chat(), AUTO) is None
    assert harmony.grammar(chat(LOOSE), AUTO) is None


@pytest.mark.parametrize("before", ["", THINK, THINK + THINK])
@pytest.mark.parametrize(
    "header", [FINAL, "<|channel|>final <|constrain|>json<|message|>", "<|channel|>final json<|message|>"]
)
@pytest.mark.parametrize(
    "body", [BODY, '{"high": 4, "place": "Oban"}', '{\n    "high": -12,\n    "place": "Mallaig"\n}']
)
def test_a_json_answer_after_free_reasoning(harmony, accepts, before: str, header: str, body: str) -> None:
    grammar = harmony.grammar(chat(wanted=JsonFormat(SCHEMA)), AUTO)
    assert accepts(grammar, f"{before}{header}{body}<|return|>")


@pytest.mark.parametrize(
    "turn",
    [
        f"{FINAL}High at 4.<|return|>",
        f"{FINAL}```json\n{BODY}```<|return|>",
        f'{FINAL}{{"high":4}}<|return|>',
        f'{FINAL}{{"high":4.5,"place":"Oban"}}<|return|>',
        f'{FINAL}{{"high":4,"place":"Oban","more":1}}<|return|>',
        f'{FINAL}{{"high":4,{" " * 50}"place":"Oban"}}<|return|>',
        f"{FINAL}{BODY}<|end|>",
        f"{FINAL}{BODY}<|call|>",
        f"{FINAL}{BODY}",
        f"{FINAL}{BODY}<|return|><|start|>",
        f"{FINAL}{BODY}<|endoftext|>",
        f"<|channel|>analysis<|message|>{BODY}<|return|>",
        f"{SAY}{FINAL}{BODY}<|return|>",  # the preamble is content, too
        f"{THINK}<|channel|>commentary to=functions.tide<|message|>{ARGUMENTS}<|call|>",
        f"<|channel|>musing<|message|>x<|end|><|start|>assistant{FINAL}{BODY}<|return|>",
        f"{BODY}<|return|>",
        f"<|channel|>analysis<|message|>x<|end|><|start|>user{FINAL}{BODY}<|return|>",
    ],
)
def test_what_is_no_json_answer(harmony, accepts, turn: str) -> None:
    assert not accepts(harmony.grammar(chat(wanted=JsonFormat(SCHEMA)), AUTO), turn)


def test_control_text_in_ordinary_tokens_is_text(harmony, accepts, tiny: Tokenizer) -> None:
    grammar = harmony.grammar(chat(wanted=JsonFormat(SCHEMA)), AUTO)
    spelled = tiny.encode(f"x <|end|><|start|>assistant{FINAL}no json<|return|>")
    thinking = [*tiny.encode_with_special("<|channel|>analysis<|message|>"), *spelled]
    ending = tiny.encode_with_special(f"<|end|><|start|>assistant{FINAL}{BODY}<|return|>")
    assert accepts(grammar, thinking + ending)
    assert not accepts(grammar, thinking)
    assert not accepts(grammar, [*tiny.encode_with_special(FINAL + BODY), *tiny.encode("<|return|>")])


CALLS = [
    "<|channel|>commentary to=functions.tide <|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.tide<|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.tide json<|message|>",
    "<|channel|>commentary to=functions.tide<|message|>",
    " to=functions.tide<|channel|>commentary <|constrain|>json<|message|>",
    " to=functions.tide<|channel|>commentary<|constrain|>json<|message|>",
    " to=functions.tide<|channel|>commentary json<|message|>",
    " to=functions.tide<|channel|>commentary<|message|>",
]


@pytest.mark.parametrize("choice", [AUTO, required(), required("tide")])
@pytest.mark.parametrize("header", CALLS)
@pytest.mark.parametrize("before", ["", THINK, THINK + SAY, SAY + THINK])
def test_calls_in_every_order_the_model_writes(harmony, accepts, choice, header: str, before: str) -> None:
    grammar = harmony.grammar(chat(WIND, TIDE), choice)
    assert accepts(grammar, f"{before}{header}{ARGUMENTS}<|call|>")
    assert not accepts(grammar, f"{before}{header}{{}}<|call|>")
    assert not accepts(grammar, f"{before}{header}{ARGUMENTS}<|return|>")
    assert not accepts(grammar, f"{before}{header}{ARGUMENTS}<|end|>")
    assert not accepts(grammar, f"{before}{header.replace('tide', 'tides')}{ARGUMENTS}<|call|>")
    other = header.replace("tide", "wind")
    assert accepts(grammar, f"{before}{other}{ARGUMENTS}<|call|>") is (choice.names is None)


def test_a_forced_call_leaves_no_final_answer(harmony, accepts) -> None:
    answer = f"{THINK}{FINAL}High at 4.<|return|>"
    assert accepts(harmony.grammar(chat(TIDE), AUTO), answer)
    assert accepts(harmony.grammar(chat(TIDE), AUTO), THINK + SAY + f"{FINAL}High at 4.<|return|>")
    assert not accepts(harmony.grammar(chat(TIDE), required()), answer)
    assert not accepts(harmony.grammar(chat(TIDE), required("tide")), answer)


def test_a_json_answer_or_a_call(harmony, accepts) -> None:
    grammar = harmony.grammar(chat(TIDE, LOOSE, wanted=JsonFormat(SCHEMA)), AUTO)
    assert accepts(grammar, f"{THINK}{FINAL}{BODY}<|return|>")
    assert accepts(grammar, f"{THINK}{SAY}{CALLS[0]}{ARGUMENTS}<|call|>")
    assert accepts(grammar, f"{CALLS[0].replace('tide', 'loose')}{{}}<|call|>")
    assert not accepts(grammar, f"{SAY}{FINAL}{BODY}<|return|>")


def test_one_tools_name_may_begin_with_anothers(harmony, accepts) -> None:
    grammar = harmony.grammar(chat(FunctionTool("tide"), FunctionTool("tide_low", parameters=PORT)), required())
    assert accepts(grammar, f"{CALLS[0]}{{}}<|call|>")
    assert accepts(grammar, f"{CALLS[0].replace('tide', 'tide_low')}{ARGUMENTS}<|call|>")
    assert not accepts(grammar, f"{CALLS[0]}{ARGUMENTS}<|call|>")


def test_any_name_can_be_called(harmony, accepts, tiny: Tokenizer) -> None:
    header = tiny.encode_with_special("<|channel|>") + tiny.encode(f"commentary to=functions.{ODD.name}")
    turn = header + tiny.encode_with_special(f"<|message|>{ARGUMENTS}<|call|>")
    assert accepts(harmony.grammar(chat(ODD), required()), turn)


def test_only_what_may_follow_can_be_sampled(harmony, vocabulary: LLTokenizer, tiny: Tokenizer) -> None:
    def allowed_after(turn: str, *tools: FunctionTool, choice: ToolChoice = AUTO) -> set[int]:
        grammar = harmony.grammar(chat(*tools, wanted=None if tools else JsonFormat(SCHEMA)), choice)
        matcher = LLMatcher(vocabulary, grammar)
        assert matcher.consume_tokens(tiny.encode_with_special(turn))
        bits = matcher.compute_bitmask()
        return {i for i in range(512) if bits[i // 8] >> (i % 8) & 1}

    ids = {name: tiny.special_id(f"<|{name}|>") for name in ("return", "call", "end", "channel", "start")}
    assert allowed_after(f"{THINK}{FINAL}{BODY}") == {ids["return"]}
    assert allowed_after(f"{CALLS[0]}{ARGUMENTS}", TIDE, choice=required()) == {ids["call"]}
    assert allowed_after("<|channel|>analysis<|message|>x<|end|>") == {ids["start"]}
    in_reasoning = allowed_after("<|channel|>analysis<|message|>x")
    assert {i for i in in_reasoning if tiny.is_special(i)} == {ids["end"]}
    assert len(in_reasoning) > 200


@pytest.mark.parametrize(
    ("wanted", "good", "bad"),
    [
        (JsonFormat(), ["{}", '{"a": [1, null]}'], ["[]", "1", "", "{} "]),
        (RegexFormat(r"\d{2}/\d{2}"), ["24/12"], ["24/123", "x24/12", ""]),
        (RegexFormat(r"^a+$"), ["aa"], ["b", "aab"]),
        (RegexFormat("a\nb"), ["a\nb"], ["a b"]),
        (ChoiceFormat(("yes", 'n"o\n', "é \\ /")), ["yes", 'n"o\n', "é \\ /"], ["ye", "yes "]),
        (ChoiceFormat((r"a.+*?()|[]{}^$#&~-<>b", "//", "")), [r"a.+*?()|[]{}^$#&~-<>b", "//", ""], ["a", "/", "b"]),
        (ChoiceFormat(tuple(f"label {i}" for i in range(5000))), ["label 0", "label 4321"], ["label 5000", "label "]),
        (GrammarFormat('start: "<" x ">" // a <comment>\nx: /[<0-9]+/ "}"'), ["<12}>", "<<}>"], ["<>", "<1>"]),
        (GrammarFormat('root ::= "a" item\nitem ::= [0-9]+ | "b"'), ["a1", "ab"], ["a", "b"]),
    ],
)
def test_other_forms_of_the_answer(harmony, accepts, wanted: AnswerFormat, good: list[str], bad: list[str]) -> None:
    grammar = harmony.grammar(chat(wanted=wanted), AUTO)
    assert [text for text in good if not accepts(grammar, f"{THINK}{FINAL}{text}<|return|>")] == []
    assert [text for text in bad if accepts(grammar, f"{THINK}{FINAL}{text}<|return|>")] == []


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (SCHEMA | {"$schema": "http://json-schema.org/draft-07/schema#", "title": "T"}, BODY, "{}"),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"a":1,"b":[2]}', '{"a":"x"}'),
        ({"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}, "[[],[[]]]", "[1]"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", "1.5"),
        ({"type": "string", "format": "date"}, '"2026-01-31"', '"tomorrow"'),
        ({"type": "array", "items": {"type": "integer"}, "maxItems": 1}, "[1]", "[1,2]"),
    ],
)
def test_schemas_as_clients_send_them(harmony, accepts, schema: dict[str, Any], good: str, bad: str) -> None:
    grammar = harmony.grammar(chat(wanted=JsonFormat(schema)), AUTO)
    assert accepts(grammar, f"{FINAL}{good}<|return|>")
    assert not accepts(grammar, f"{FINAL}{bad}<|return|>")


@pytest.mark.parametrize(
    "wanted",
    [
        JsonFormat({"type": "array", "uniqueItems": True}),
        JsonFormat({"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)"}}}),
        JsonFormat({"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}),
        JsonFormat({"type": "string", "format": "int32"}),
        JsonFormat({"$ref": "http://example.com/schema"}),
        JsonFormat({"$ref": "file:///etc/hostname"}),
        JsonFormat({"type": "objekt"}),
        JsonFormat({"a": float("nan")} | {"const": float("inf")}),
        JsonFormat(json.loads('{"not": ' * 300 + "{}" + "}" * 300)),
        RegexFormat(r"a(?=b)"),
        RegexFormat("["),
        GrammarFormat("start: <|end|>"),
        GrammarFormat("start: x\nx: <[200007]>"),
        GrammarFormat('start: "a"\n}\nTEXT: "b"'),
        GrammarFormat("start: undefined"),
        GrammarFormat("start: @other"),
        GrammarFormat(""),
        # No text follows these, which llguidance finds only when it is asked for a beginning.
        JsonFormat({"$ref": "#"}),
        RegexFormat("[a&&b]"),
        GrammarFormat("root ::= root"),
        GrammarFormat('start: start "a"'),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_its_field(harmony, wanted: AnswerFormat) -> None:
    with pytest.raises(RequestError) as refused:
        harmony.grammar(chat(wanted=wanted), AUTO)
    assert refused.value.param == wanted.param
    assert refused.value.code == "unsupported_grammar"
    assert len(refused.value.message) < 500
    assert "start:" not in refused.value.message


def test_a_strict_tool_that_cannot_be_enforced_is_refused(harmony, accepts) -> None:
    hard = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(RequestError) as refused:
        harmony.grammar(chat(LOOSE, FunctionTool("hard", parameters=hard, strict=True)), AUTO)
    assert refused.value.param == "tools[1]"
    assert "uniqueItems" in refused.value.message
    # One that is not strict was promised nothing but to be called.
    grammar = harmony.grammar(chat(FunctionTool("tide", parameters=hard)), required())
    assert accepts(grammar, f'{CALLS[0]}{{"a":[1,1]}}<|call|>')
    assert not accepts(grammar, f"{CALLS[0]}[]<|call|>")


@pytest.mark.parametrize("choice", [required("wind"), required()])
def test_a_choice_of_what_is_not_there_is_refused(harmony, choice: ToolChoice) -> None:
    with pytest.raises(RequestError) as refused:
        harmony.grammar(chat(*([TIDE] if choice.names else [])), choice)
    assert refused.value.param == "tool_choice"


def test_the_model_is_told_of_a_named_schema(harmony, tiny: Tokenizer) -> None:
    wanted = JsonFormat(SCHEMA, name="tide_report", description="What to say\nof a tide.")
    prompt = tiny.decode(harmony.render(chat(TIDE, wanted=wanted)), keep_special=True)
    schema = json.dumps(SCHEMA, separators=(",", ":"))
    told = f"# Response Formats\n\n## tide_report\n\n// What to say\n// of a tide.\n\n{schema}"
    assert f"}} // namespace functions\n\n{told}<|end|><|start|>user" in prompt
    assert harmony.render(chat(wanted=JsonFormat(SCHEMA))) == harmony.render(chat())
