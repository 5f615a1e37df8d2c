"""What every chat format keeps to. A new one is tried by adding a checkpoint of it to `subjects`."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from rose.chat.answer_format import AnswerFormat, ChoiceFormat, GrammarFormat, JsonFormat, RegexFormat, ToolChoice
from rose.chat.conversation import Conversation, FunctionTool, Message, ToolCall
from rose.chat.merge import MergedAnswer, MergedToolCall
from rose.chat.plain_text import PlainTextParser
from rose.chat.registry import FORMATS, get_format
from rose.chat.tokenizer import Tokenizer, as_tokenizer
from rose.cli.main import app
from rose.engine.worker.grammar_tokenizer import TokenizerFile
from rose.errors import RequestError
from tests.chat.promises import check_events, events_of, merged
from tests.chat.subjects import SUBJECTS, Subject, subject

PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TIDE = FunctionTool("tide", "When the tide is high.", PLACE, strict=True)
WIND = FunctionTool("wind", "How it blows.", PLACE)
ARGUMENTS = '{"place": "Oban"}'
REPORT = {"type": "object", "properties": {"high": {"type": "integer"}}, "required": ["high"]}
AUTO, REQUIRED = ToolChoice(), ToolChoice("required")

CHAT = Conversation(
    messages=(
        Message("system", "Be brief."),
        Message("developer", "Use metres."),
        Message("user", "When is high tide at Oban?"),
        Message("assistant", reasoning="Need the tide.", tool_calls=(ToolCall("c1", "tide", ARGUMENTS),)),
        Message("tool", "High at 4.", tool_call_id="c1"),
        Message("assistant", "At 4."),
        Message("user", "And low?"),
        Message("assistant", "I will look.", reasoning="Again.", tool_calls=(ToolCall("c2", "wind", ARGUMENTS),)),
        Message("tool", "Calm.", tool_call_id="c2"),
    ),
    tools=(TIDE, WIND),
    current_date="2026-01-31",
)


@pytest.fixture(params=SUBJECTS)
def tried(request) -> Subject:
    return subject(request.param)


def test_every_registered_format_is_tried() -> None:
    assert {subject(name).chat.name for name in SUBJECTS} == set(FORMATS)
    assert all(FORMATS[name].name == name for name in FORMATS)


def test_it_is_found_by_the_checkpoints_files(tried: Subject) -> None:
    assert FORMATS[tried.chat.name].suits(tried.tokenizer)
    assert get_format(tried.chat.name, tried.file).stop_token_ids == tried.chat.stop_token_ids
    assert tried.chat.stop_token_ids
    names = [tried.tokenizer.decode([token], keep_special=True) for token in tried.chat.stop_token_ids]
    assert [tried.tokenizer.special_id(name) for name in names] == list(tried.chat.stop_token_ids)


# Prompts.


def text_of(tried: Subject, chat: Conversation) -> str:
    return tried.tokenizer.decode(tried.chat.render(chat), keep_special=True)


def test_a_prompt_says_everything_in_order(tried: Subject) -> None:
    text = text_of(tried, CHAT)
    position = 0
    for part in ["Be brief.", "Use metres.", "When is high tide at Oban?", "tide", ARGUMENTS, "High at 4.", "At 4."]:
        position = text.index(part, position)
    for part in ["And low?", "Again.", "I will look.", "wind", ARGUMENTS, "Calm."]:
        position = text.index(part, position)
    for part in ["When the tide is high.", "place", "string", "How it blows."]:
        assert part in text


def test_the_same_chat_gives_the_same_prompt(tried: Subject) -> None:
    assert tried.chat.render(CHAT) == get_format(tried.chat.name, tried.file).render(CHAT)


@pytest.mark.parametrize("num_messages", range(1, len(CHAT.messages) + 1))
def test_every_beginning_of_a_chat_can_be_rendered(tried: Subject, num_messages: int) -> None:
    prompt = tried.chat.render(dataclasses.replace(CHAT, messages=CHAT.messages[:num_messages]))
    assert prompt
    parser = tried.chat.parser(prompt)
    answer = tried.sample(tried.answer, reasoning="So.", content="Hello.")
    assert merged(parser, answer) == MergedAnswer("So.", "Hello.", (), "stop", ())


def test_instructions_in_the_middle_stay_there(tried: Subject) -> None:
    text = text_of(
        tried, Conversation((Message("user", "One."), Message("developer", "Two."), Message("user", "Six.")))
    )
    assert text.index("One.") < text.index("Two.") < text.index("Six.")


def test_an_identity_and_a_named_schema_are_told(tried: Subject) -> None:
    wanted = JsonFormat(REPORT, name="tide_report", description="What to say.")
    text = text_of(tried, Conversation((Message("user", "x"),), model_identity="I am Rose.", answer_format=wanted))
    assert text.index("I am Rose.") < text.index("tide_report")
    assert json.dumps(REPORT, separators=(",", ":")) in text


def test_the_next_prompt_begins_with_the_last_and_its_sample(tried: Subject) -> None:
    asked = Conversation((Message("user", "hi"),), tools=(TIDE,))
    prompt = tried.chat.render(asked)
    sample = tried.sample(tried.call, reasoning="Need the tide.", name="tide", arguments=ARGUMENTS)
    answer = merged(tried.chat.parser(prompt), sample)
    assert (answer.reasoning, answer.finish_reason, answer.recovered) == ("Need the tide.", "tool_calls", ())
    assert answer.tool_calls == (MergedToolCall("tide", ARGUMENTS),)
    calls = tuple(ToolCall(f"c{i}", call.name, call.arguments) for i, call in enumerate(answer.tool_calls))
    called = Message("assistant", answer.content, answer.reasoning, calls)
    after = tried.chat.render(
        dataclasses.replace(asked, messages=(*asked.messages, called, Message("tool", "4", tool_call_id="c0")))
    )
    assert after[: len(prompt + sample)] == prompt + sample


# Answers.


def test_a_parser_without_a_prompt_takes_the_usual_one(tried: Subject) -> None:
    sample = tried.sample(tried.answer, reasoning="So.", content="Hello.\nYou.")
    assert merged(tried.chat.parser(), sample) == MergedAnswer("So.", "Hello.\nYou.", (), "stop", ())


def test_sections_tell_what_each_token_is(tried: Subject) -> None:
    sample = tried.sample(tried.answer, reasoning="So.", content="Hello.")
    parser, by_section = tried.chat.parser(), {}
    for token in sample:
        parser.push(token)
        by_section.setdefault(parser.section, []).append(token)
    # The characters of a tag that is spelled are what they may be as long as they may be that.
    assert tried.tokenizer.decode(by_section["content"]).strip().endswith("Hello.")
    assert tried.tokenizer.decode(by_section["reasoning"]).strip().startswith("So.")


def test_each_cut_of_a_call_is_no_call(tried: Subject) -> None:
    sample = tried.sample(tried.call, reasoning="Need it.", name="tide", arguments=ARGUMENTS)
    for length in range(len(sample)):
        events = events_of(tried.chat.parser(), sample[:length], "length")
        check_events(events, "length")
        assert not any(getattr(event, "complete", False) for event in events)


def test_arguments_are_streamed(tried: Subject) -> None:
    sample = tried.sample(tried.call, reasoning="Need it.", name="tide", arguments=ARGUMENTS)
    parser = tried.chat.parser()
    steps = [parser.push(token) for token in sample]
    deltas = [step for step in steps if any(hasattr(event, "arguments") for event in step)]
    assert len(deltas) > 2


# Control text of clients.


FIELDS: dict[str, Callable[[str], Conversation]] = {
    "user": lambda text: Conversation((Message("user", text),)),
    "system": lambda text: Conversation((Message("system", text), Message("user", "hi"))),
    "developer later": lambda text: Conversation((Message("user", "hi"), Message("developer", text))),
    "identity": lambda text: Conversation((Message("user", "hi"),), model_identity=text),
    "assistant": lambda text: Conversation((Message("assistant", text), Message("user", "hi"))),
    "reasoning": lambda text: _called(reasoning=text),
    "call": lambda text: _called(name=text),
    "call's id": lambda text: _called(call_id=text),
    "call's arguments": lambda text: _called(arguments=text),
    "call's value": lambda text: _called(arguments=json.dumps({"place": text})),
    "call's key": lambda text: _called(arguments=json.dumps({text: 1})),
    "tool result": lambda text: _called(result=text),
    "tool's name": lambda text: _with_tool(name=text),
    "tool's description": lambda text: _with_tool(description=text),
    "parameter": lambda text: _with_tool(parameters={"type": "object", "properties": {text: {"type": "string"}}}),
    "parameter's description": lambda text: _with_parameter({"type": "string", "description": text}),
    "parameter's title": lambda text: _with_parameter({"type": "string", "title": text}),
    "parameter's default": lambda text: _with_parameter({"type": "string", "default": text}),
    "parameter's type": lambda text: _with_parameter({"type": text}),
    "enum": lambda text: _with_parameter({"type": "string", "enum": [text, "Oban"]}),
    "const": lambda text: _with_parameter({"const": text}),
    "keyword": lambda text: _with_parameter({"type": "string", text: text}),
    "reference": lambda text: _with_parameter({"$ref": text}),
    "schema's name": lambda text: _with_schema(name=text),
    "schema's description": lambda text: _with_schema(description=text),
    "schema": lambda text: _with_schema(schema={"type": "object", "properties": {text: {"enum": [text]}}}),
}


def _called(
    *, name: str = "tide", call_id: str = "c1", arguments: str = "{}", reasoning: str = "So.", result: str = "4"
) -> Conversation:
    call = Message("assistant", reasoning=reasoning, tool_calls=(ToolCall(call_id, name, arguments),))
    return Conversation((Message("user", "hi"), call, Message("tool", result, tool_call_id=call_id, name=name)))


def _with_tool(
    *, name: str = "tide", description: str = "High?", parameters: dict[str, Any] | None = None
) -> Conversation:
    return Conversation((Message("user", "hi"),), tools=(FunctionTool(name, description, parameters),))


def _with_parameter(schema: dict[str, Any]) -> Conversation:
    return _with_tool(parameters={"type": "object", "properties": {"place": schema}})


def _with_schema(*, name: str = "report", description: str = "What?", schema: dict[str, Any] | None = None):
    return Conversation((Message("user", "hi"),), answer_format=JsonFormat(schema or REPORT, name, description))


def control_tokens(tried: Subject, chat: Conversation) -> list[int]:
    added = {tried.tokenizer.special_id(name) for name in tried.tokenizer.added_names}
    return [token for token in tried.chat.render(chat) if token in added]


def fragments(tried: Subject) -> st.SearchStrategy[str]:
    """Names of control tokens, parts of them, and what templates write beside them."""
    names = st.sampled_from(tried.tokenizer.added_names)
    parts = names.flatmap(lambda name: st.slices(len(name)).map(lambda part: name[part]))
    others = st.sampled_from(["", " ", "\n", "<", ">", "|", "\\", '"', "x", "\ufdd0", "\ufdd1", "\ud83d", "é"])
    return st.lists(st.one_of(names, parts, others), min_size=1, max_size=5).map("".join).filter(bool)


@pytest.mark.parametrize("field", FIELDS)
def test_control_text_is_ordinary_text(tried: Subject, field: str) -> None:
    with_text = FIELDS[field]
    expected = control_tokens(tried, with_text("x"))
    everything = "".join(tried.tokenizer.added_names)
    for text in [*tried.tokenizer.added_names, everything]:
        assert control_tokens(tried, with_text(text)) == expected, text

    @settings(max_examples=25)
    @given(text=fragments(tried))
    def check(text: str) -> None:
        assert control_tokens(tried, with_text(text)) == expected

    check()


@pytest.mark.parametrize("field", ["user", "system", "developer later", "tool result", "call's arguments", "reasoning"])
def test_control_text_is_not_changed(tried: Subject, field: str) -> None:
    for text in [*tried.tokenizer.added_names, "a" + "".join(tried.tokenizer.added_names) + "<|im_", "|>\n<b"]:
        assert text in text_of(tried, FIELDS[field](text))


def test_two_texts_side_by_side_make_no_control_token(tried: Subject) -> None:
    expected = control_tokens(tried, Conversation((Message("system", "x"), Message("user", "x")), model_identity="x"))
    for name in tried.tokenizer.added_names:
        for cut in range(1, len(name)):
            halves = Conversation((Message("system", name[cut:]), Message("user", "x")), model_identity=name[:cut])
            assert control_tokens(tried, halves) == expected


# What is demanded of an answer.


@pytest.fixture
def follows(tried: Subject) -> Callable[[str | None, list[int]], bool]:
    """Whether a turn follows a grammar to its end; behind that, only what ends a turn may stand."""
    vocabulary = TokenizerFile(tried.file, 512).load()

    def walk(grammar: str | None, turn: list[int]) -> bool:
        assert grammar is not None
        matcher = LLMatcher(vocabulary, grammar, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        taken = matcher.try_consume_tokens(turn)
        return matcher.is_stopped() and not matcher.is_error() and set(turn[taken:]) <= set(tried.chat.stop_token_ids)

    return walk


FORMS: list[tuple[AnswerFormat, str, str]] = [
    (JsonFormat(), '{"a": [1]}', "[]"),
    (JsonFormat(REPORT), '{"high": 4}', '{"high": "four"}'),
    (JsonFormat(REPORT, name="report"), '{\n  "high": 4\n}', "{}"),
    (RegexFormat(r"\d+ m|<think>x"), "12 m", "m"),
    (RegexFormat("\n\nx\n"), "\n\nx\n", "x"),
    (ChoiceFormat(("high", "low\n")), "low\n", "low"),
]


@pytest.mark.parametrize(("wanted", "good", "bad"), FORMS)
@pytest.mark.parametrize("tools", [(), (WIND,), (TIDE, WIND)])
def test_the_form_of_an_answer_is_enforced(tried: Subject, follows, wanted, good: str, bad: str, tools) -> None:
    grammar = tried.chat.grammar(Conversation((Message("user", "hi"),), tools, answer_format=wanted), AUTO)
    sample = tried.sample(tried.answer, reasoning="So.\nOr?", content=good)
    assert follows(grammar, sample)
    assert merged(tried.chat.parser(), sample).content == good
    assert not follows(grammar, tried.sample(tried.answer, reasoning="So.", content=bad))
    call = tried.sample(tried.call, reasoning="So.", name="wind", arguments=ARGUMENTS)
    assert follows(grammar, call) is bool(tools)


def test_a_grammar_of_the_clients_own_is_enforced_or_refused(tried: Subject, follows) -> None:
    asked = Conversation((Message("user", "hi"),), answer_format=GrammarFormat('start: "a" | "b"'))
    try:
        grammar = tried.chat.grammar(asked, AUTO)
    except RequestError as refused:
        assert (refused.param, refused.code) == ("structured_outputs", "unsupported_grammar")
        return
    assert follows(grammar, tried.sample(tried.answer, reasoning="So.", content="a"))
    assert not follows(grammar, tried.sample(tried.answer, reasoning="So.", content="c"))


@pytest.mark.parametrize(
    ("choice", "may_answer", "may_call"),
    [
        (AUTO, True, ("tide", "wind")),
        (ToolChoice(names=()), True, ()),
        (ToolChoice(names=("tide",)), True, ("tide",)),
        (REQUIRED, False, ("tide", "wind")),
        (ToolChoice("required", ("wind",)), False, ("wind",)),
    ],
)
def test_a_choice_of_tools_is_enforced(tried: Subject, follows, choice, may_answer: bool, may_call) -> None:
    grammar = tried.chat.grammar(Conversation((Message("user", "hi"),), (TIDE, WIND)), choice)
    answer = tried.sample(tried.answer, reasoning="So.", content="Hello\n{}.")
    assert follows(grammar, answer) is may_answer
    for name in ("tide", "wind", "tides"):
        call = tried.sample(tried.call, reasoning="So.", name=name, arguments=ARGUMENTS)
        assert follows(grammar, call) is (name in may_call), name
        assert merged(tried.chat.parser(), call).tool_calls == (MergedToolCall(name, ARGUMENTS),)
        assert not follows(grammar, tried.sample(tried.call, reasoning="So.", name=name, arguments='{"place": 1}'))


def test_a_form_and_a_forced_call(tried: Subject, follows) -> None:
    asked = Conversation((Message("user", "hi"),), (TIDE,), answer_format=JsonFormat(REPORT))
    grammar = tried.chat.grammar(asked, REQUIRED)
    assert follows(grammar, tried.sample(tried.call, reasoning="So.", name="tide", arguments=ARGUMENTS))
    assert not follows(grammar, tried.sample(tried.answer, reasoning="So.", content='{"high": 4}'))


def test_nothing_demanded_is_no_grammar(tried: Subject) -> None:
    assert tried.chat.grammar(Conversation((Message("user", "hi"),), (WIND,)), AUTO) is None


@pytest.mark.parametrize("name", ["tide", 'od"d\\ né', "<tool_call>", "<|call|>\n{}", "</think>"])
def test_any_name_can_be_forced(tried: Subject, follows, name: str) -> None:
    asked = Conversation((Message("user", "hi"),), (FunctionTool(name, parameters=PLACE),))
    grammar = tried.chat.grammar(asked, REQUIRED)
    assert not LLMatcher.validate_grammar(grammar)
    before, after = tried.call.removeprefix(tried.opened).replace("$reasoning", "So.").split("$name")
    spelled = json.dumps(name, ensure_ascii=False)[1:-1] if tried.chat.name == "chatml" else name
    encode = tried.tokenizer.encode_with_special
    call = [*encode(before), *tried.tokenizer.encode(spelled), *encode(after.replace("$arguments", ARGUMENTS))]
    assert follows(grammar, call)


HARD = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}


@pytest.mark.parametrize(
    ("chat", "choice", "param"),
    [
        (Conversation((), answer_format=JsonFormat(HARD)), AUTO, "response_format"),
        (Conversation((), answer_format=RegexFormat("a(?=b)")), AUTO, "structured_outputs"),
        (Conversation((), answer_format=GrammarFormat("start: <|im_end|>")), AUTO, "structured_outputs"),
        (Conversation((), (WIND, FunctionTool("x", parameters=HARD, strict=True))), AUTO, "tools[1]"),
        (Conversation(()), REQUIRED, "tool_choice"),
        (Conversation((), (WIND,)), ToolChoice("required", ("tide",)), "tool_choice"),
    ],
)
def test_what_cannot_be_enforced_is_refused(tried: Subject, chat: Conversation, choice, param: str) -> None:
    chat = dataclasses.replace(chat, messages=(Message("user", "hi"),))
    with pytest.raises(RequestError) as refused:
        tried.chat.grammar(chat, choice)
    assert refused.value.param == param


# One folder and one line.


class Murmur:
    """A format that is all text: a prompt is the last message, an answer whatever follows."""

    name = "murmur"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.stop_token_ids = ()

    @classmethod
    def suits(cls, tokenizer: Tokenizer) -> bool:
        return not tokenizer.added_names

    def render(self, conversation: Conversation) -> list[int]:
        return self._tokenizer.encode(conversation.messages[-1].content)

    def grammar(self, conversation: Conversation, tool_choice: ToolChoice) -> None:
        return None

    def parser(self, prompt=None) -> PlainTextParser:
        return PlainTextParser(self._tokenizer)


def test_a_new_format_is_a_class_and_a_line(tmp_path, tiny_backend, monkeypatch, capsys) -> None:
    definition = json.loads(tiny_backend.to_str()) | {"added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    (tmp_path / "text").write_text("High at 4.")
    monkeypatch.setitem(FORMATS, "murmur", Murmur)
    tokenizer = as_tokenizer(tmp_path)
    assert get_format("auto", tokenizer).render(Conversation((Message("user", "hi"),))) == tokenizer.encode("hi")
    for name in ("auto", "murmur"):
        app(
            ["parse", "--model", str(tmp_path), "--text", str(tmp_path / "text"), "--chat-format", name],
            result_action="return_value",
        )
        assert json.loads(capsys.readouterr().out)["content"] == "High at 4."
