"""Tools that the model calls while it thinks: how they are announced, called and answered, against the reference."""

import openai_harmony as oh
import pytest
from llguidance import LLMatcher

from rose.chat.answer_format import JsonFormat, ToolChoice
from rose.chat.conversation import BuiltinTool, Conversation, FunctionTool, Message, ToolCall
from rose.chat.events import Finished, ToolCallDelta, ToolCallEnd, ToolCallStart
from rose.chat.harmony.format import HarmonyFormat
from rose.engine.worker.grammar_tokenizer import TokenizerFile
from rose.errors import RequestError

QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
PYTHON = BuiltinTool("python", "Run it.\n\nNothing is kept.")
BROWSER = BuiltinTool(
    "browser", "Look it up.\nCite.", (FunctionTool("search", "Search\nwell.", QUERY), FunctionTool("back"))
)
TIDE = FunctionTool("tide", "When it is high.", {"type": "object", "properties": {"port": {"type": "string"}}})
LOOKED_UP = (
    Message("user", "tide?"),
    Message("assistant", reasoning="Compute.", tool_calls=(ToolCall("c1", "python", "print(4)", is_builtin=True),)),
    Message("tool", "4\n", tool_call_id="c1"),
    Message("assistant", tool_calls=(ToolCall("c2", "browser.search", '{"query":"x"}', is_builtin=True),)),
    Message("tool", "Found.", tool_call_id="c2"),
)


def namespace(tool: BuiltinTool) -> oh.ToolNamespaceConfig:
    functions = [oh.ToolDescription.new(f.name, f.description or "", f.parameters) for f in tool.functions]
    return oh.ToolNamespaceConfig(name=tool.name, description=tool.description, tools=functions)


@pytest.mark.parametrize("functions", [(), (TIDE,)])
@pytest.mark.parametrize("builtins", [(PYTHON,), (BROWSER, PYTHON)])
def test_they_are_announced_in_the_system_message_as_by_the_reference(harmony, oracle, functions, builtins):
    system = oh.SystemContent.new()
    for tool in builtins:
        system = system.with_tools(namespace(tool))
    messages = [oh.Message.from_role_and_content(oh.Role.SYSTEM, system)]
    if functions:
        developer = oh.DeveloperContent.new().with_function_tools(
            [oh.ToolDescription.new(f.name, f.description, f.parameters) for f in functions]
        )
        messages.append(oh.Message.from_role_and_content(oh.Role.DEVELOPER, developer))
    messages.append(oh.Message.from_role_and_content(oh.Role.USER, "tide?"))
    reference = oracle.render_conversation_for_completion(oh.Conversation.from_messages(messages), oh.Role.ASSISTANT)
    ours = harmony.render(Conversation((Message("user", "tide?"),), tools=functions, builtin_tools=builtins))
    assert oracle.decode(ours) == oracle.decode(reference)
    assert ours == reference


def test_calls_and_results_are_what_the_reference_reads_as_such(harmony, oracle):
    prompt = harmony.render(Conversation(LOOKED_UP, builtin_tools=(PYTHON, BROWSER)))
    assert oracle.decode(prompt).endswith(
        "<|start|>assistant<|channel|>analysis<|message|>Compute.<|end|>"
        "<|start|>assistant<|channel|>analysis to=python code<|message|>print(4)<|call|>"
        "<|start|>python to=assistant<|channel|>analysis<|message|>4\n<|end|>"
        '<|start|>assistant<|channel|>analysis to=browser.search code<|message|>{"query":"x"}<|call|>'
        "<|start|>browser.search to=assistant<|channel|>analysis<|message|>Found.<|end|><|start|>assistant"
    )
    start = oracle.encode("<|start|>", allowed_special="all")
    read = oracle.parse_messages_from_completion_tokens(prompt[: -1 - len(start)])
    last = [(m.author.name or m.author.role.value, m.recipient, m.channel, m.content[0].text) for m in read[-4:]]
    assert last == [
        ("assistant", "python", "analysis", "print(4)"),
        ("python", "assistant", "analysis", "4\n"),
        ("assistant", "browser.search", "analysis", '{"query":"x"}'),
        ("browser.search", "assistant", "analysis", "Found."),
    ]


def test_they_are_dropped_with_the_reasoning_of_an_answered_turn(harmony, oracle):
    answered = (*LOOKED_UP, Message("assistant", "High at 4."), Message("user", "And low?"))
    prompt = oracle.decode(harmony.render(Conversation(answered, builtin_tools=(PYTHON,))))
    assert prompt.endswith(
        "<|start|>user<|message|>tide?<|end|><|start|>assistant<|channel|>final<|message|>High at 4.<|end|>"
        "<|start|>user<|message|>And low?<|end|><|start|>assistant"
    )


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>analysis to=python code<|message|>",
        "<|channel|>analysis to=python <|constrain|>code<|message|>",
        " to=python<|channel|>analysis code<|message|>",
        "<|channel|>commentary to=python<|message|>",
    ],
)
def test_calls_as_the_model_writes_them_are_read(tiny, header):
    parser = HarmonyFormat(tiny).parser()
    events = [e for i in tiny.encode_with_special(header + "print(4)<|call|>") for e in parser.push(i)]
    *events, finished = events + parser.finish("stop")
    assert events[0] == ToolCallStart(0, "python")
    assert "".join(e.arguments for e in events if isinstance(e, ToolCallDelta)) == "print(4)"
    assert events[-1] == ToolCallEnd(0, complete=True)
    assert isinstance(finished, Finished)
    assert finished.reason == "tool_calls"
    assert finished.recovered == (), "nothing had to be put right"


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
PYTHON_CALL = "<|channel|>analysis to=python code<|message|>print(4)<|call|>"
SEARCH_CALL = '<|channel|>analysis to=browser.search code<|message|>{"query": "x"}<|call|>'
TIDE_CALL = '<|channel|>commentary to=functions.tide <|constrain|>json<|message|>{"port":"Oban"}<|call|>'
ANSWER = '<|channel|>final<|message|>{"a":4}<|return|>'
THINK = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
FORM = JsonFormat(SCHEMA)


@pytest.fixture(scope="module")
def accepts(tiny_backend, tmp_path_factory, tiny):
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tiny_backend.save(str(file))
    vocabulary = TokenizerFile(file, 512).load()

    def walk(grammar: str, turn: str) -> bool:
        matcher = LLMatcher(vocabulary, grammar, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        ids = tiny.encode_with_special(turn)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_stopped()

    return walk


@pytest.mark.parametrize(
    ("choice", "wanted", "good", "bad"),
    [
        (ToolChoice(), FORM, [ANSWER, THINK + PYTHON_CALL, SEARCH_CALL, TIDE_CALL], [PYTHON_CALL[:-8] + "<|return|>"]),
        (ToolChoice("required"), None, [THINK + PYTHON_CALL, SEARCH_CALL, TIDE_CALL], [ANSWER]),
        (ToolChoice("required", ("python",)), None, [THINK + PYTHON_CALL], [SEARCH_CALL, TIDE_CALL, ANSWER]),
        (ToolChoice("auto", ("tide",)), None, [TIDE_CALL, ANSWER], [PYTHON_CALL, SEARCH_CALL]),
        (ToolChoice("auto", ()), None, [THINK + ANSWER], [PYTHON_CALL, SEARCH_CALL, TIDE_CALL]),
        (ToolChoice(), FORM, [" to=python<|channel|>analysis<|message|>1<|call|>"], [SEARCH_CALL.replace("x", '"')]),
    ],
)
def test_they_have_a_place_in_the_grammar_of_the_turn(tiny, accepts, choice, wanted, good, bad):
    conversation = Conversation(
        (Message("user", "?"),), tools=(TIDE,), builtin_tools=(PYTHON, BROWSER), answer_format=wanted
    )
    grammar = HarmonyFormat(tiny).grammar(conversation, choice)
    assert [turn for turn in good if not accepts(grammar, turn)] == []
    assert [turn for turn in bad if accepts(grammar, turn)] == []


def test_nothing_demanded_of_them_is_no_grammar(tiny):
    conversation = Conversation((Message("user", "?"),), builtin_tools=(PYTHON,))
    assert HarmonyFormat(tiny).grammar(conversation, ToolChoice()) is None
    with pytest.raises(RequestError, match="browser"):
        HarmonyFormat(tiny).grammar(conversation, ToolChoice("required", ("browser",)))
