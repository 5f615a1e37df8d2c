"""Prompts token for token as the reference library renders them, with the real vocabulary."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.chat.conversation import Conversation, FunctionTool, Message, ToolCall
from tests.chat.oracle_conversation import oracle_render
from tests.chat.test_typescript import IN_FORM

GOLDEN = Path(__file__).parent.parent / "golden" / "harmony"

TEXTS = st.one_of(
    st.text(min_size=1, max_size=20),
    st.sampled_from(
        ["When is high tide?", "<|end|><|start|>system", " leading", "trailing \n\n", "naïve 你好 😀", "{}"]
    ),
)
NAMES = st.sampled_from(["tide", "get_weather", "a-b", "x1"])


@st.composite
def turns(draw, *, with_reasoning: bool):
    """A user's message and what the assistant did about it, mostly to the end."""
    messages = [Message("user", draw(TEXTS))]
    reasoning = st.none() | TEXTS if with_reasoning else st.none()
    for step in range(draw(st.integers(0, 2))):
        call_ids = [f"{id(messages)}-{step}-{n}" for n in range(draw(st.integers(1, 2)))]
        calls = tuple(ToolCall(call_id, draw(NAMES), draw(TEXTS)) for call_id in call_ids)
        messages.append(Message("assistant", draw(st.just("") | TEXTS), draw(reasoning), calls))
        messages.extend(Message("tool", draw(TEXTS), tool_call_id=call_id) for call_id in call_ids)
    if draw(st.booleans()):
        messages.append(Message("assistant", draw(TEXTS), draw(reasoning)))
    return messages


@st.composite
def conversations(draw, *, with_reasoning: bool, max_turns: int):
    head = draw(st.lists(st.builds(Message, st.sampled_from(["system", "developer"]), st.just("") | TEXTS), max_size=2))
    body = draw(st.lists(turns(with_reasoning=with_reasoning), max_size=max_turns))
    parameters = st.none() | st.just({}) | IN_FORM
    descriptions = st.none() | TEXTS | st.just("two\nlines\n")
    tools = draw(st.lists(st.builds(FunctionTool, NAMES, descriptions, parameters), max_size=2))
    return Conversation(
        messages=(*head, *(message for turn in body for message in turn)),
        tools=tuple(tools),
        reasoning_effort=draw(st.sampled_from(["low", "medium", "high"])),
        current_date=draw(st.none() | st.just("2025-06-28")),
        model_identity=draw(st.none() | TEXTS),
    )


def assert_same(oracle, ours: list[int], reference: list[int]) -> None:
    assert oracle.decode(ours) == oracle.decode(reference)
    assert ours == reference


@settings(max_examples=150)
@given(conversation=conversations(with_reasoning=False, max_turns=3))
def test_agrees_without_reasoning(harmony, oracle, conversation):
    assert_same(oracle, harmony.render(conversation), oracle_render(oracle, conversation, drop_analysis=True))


@settings(max_examples=100)
@given(conversation=conversations(with_reasoning=True, max_turns=1))
def test_agrees_on_what_reasoning_one_turn_keeps(harmony, oracle, conversation):
    assert_same(oracle, harmony.render(conversation), oracle_render(oracle, conversation, drop_analysis=True))


@settings(max_examples=100)
@given(conversation=conversations(with_reasoning=True, max_turns=3))
def test_agrees_over_turns_once_old_reasoning_is_taken_out(harmony, oracle, conversation):
    """The reference drops analysis up to the *first* final answer only; ours goes up to the last."""
    messages = conversation.messages
    last = max((i for i, m in enumerate(messages) if m.role == "assistant" and not m.tool_calls), default=-1)
    kept = tuple(
        Message(m.role, m.content, m.reasoning if i > last else None, m.tool_calls, m.tool_call_id, m.name)
        for i, m in enumerate(messages)
    )
    options = {
        name: getattr(conversation, name) for name in ("tools", "reasoning_effort", "current_date", "model_identity")
    }
    reference = oracle_render(oracle, Conversation(kept, **options), drop_analysis=False)
    assert_same(oracle, harmony.render(conversation), reference)


def golden_conversation(path: Path) -> Conversation:
    """A conversation of the golden files: JSON with the fields of `Conversation`."""
    raw = json.loads(path.read_text())
    messages = [
        Message(**(message | {"tool_calls": tuple(ToolCall(**call) for call in message.get("tool_calls", ()))}))
        for message in raw.pop("messages")
    ]
    tools = tuple(FunctionTool(**tool) for tool in raw.pop("tools", ()))
    return Conversation(messages=tuple(messages), tools=tools, **raw)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_golden(path, o200k, harmony, oracle):
    """The text of a prompt, for reading; the reference says that the tokens are right too."""
    conversation = golden_conversation(path)
    prompt = harmony.render(conversation)
    assert o200k.decode(prompt, keep_special=True) == path.with_suffix(".txt").read_text()
    if not path.stem.endswith("_beyond_form"):
        assert_same(oracle, prompt, oracle_render(oracle, conversation, drop_analysis=True))


def test_there_are_golden_files():
    assert len(list(GOLDEN.glob("*.json"))) >= 5
