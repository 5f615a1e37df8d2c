"""Well-formed samples, read as the reference library reads them."""

import openai_harmony as oh
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.chat.merge import merge
from tests.chat.parsing import calls, events_of

TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["High at 4.", " to=functions.tide", '{"place": "Oban"}', "naïve 你好 😀", "<|end|>", "final"]),
)
SAID = st.sampled_from(["<|channel|>analysis", "<|channel|>commentary", "<|channel|>final"]).map(
    lambda h: (h, "<|end|>")
)
TOOLS = st.sampled_from(["functions.tide", "functions.get_weather", "functions.a-b", "browser.search", "python"])
CALLED = st.builds(
    lambda form, tool: (form.format(tool), "<|call|>"),
    st.sampled_from(
        [
            "<|channel|>commentary to={} <|constrain|>json",
            "<|channel|>commentary to={}<|constrain|>json",
            "<|channel|>commentary to={}",
            "<|channel|>analysis to={} code",
            " to={}<|channel|>commentary <|constrain|>json",
            " to={}<|channel|>commentary",
        ]
    ),
    TOOLS,
)


@st.composite
def samples(draw, o200k):
    """The ids of a whole completion."""
    ids: list[int] = []
    messages = draw(st.lists(st.tuples(st.one_of(SAID, SAID, CALLED), TEXTS), min_size=1, max_size=4))
    for number, ((header, end), text) in enumerate(messages):
        is_last = number == len(messages) - 1
        start = "<|start|>assistant" if number else ""
        end = "<|return|>" if is_last and end == "<|end|>" else end
        ids += o200k.encode_with_special(f"{start}{header}<|message|>")
        ids += [*o200k.encode(text), o200k.special_id(end)]
    return ids


@settings(max_examples=300)
@given(data=st.data())
def test_agrees_with_the_reference(o200k, oracle, data):
    ids = data.draw(samples(o200k))
    reasoning, content, called = "", "", []
    for message in oracle.parse_messages_from_completion_tokens(ids, oh.Role.ASSISTANT, strict=True):
        text = message.content[0].text
        if message.recipient:
            called.append((message.recipient.removeprefix("functions."), text))
        elif message.channel == "analysis":
            reasoning += text
        else:
            content += text
    answer = merge(events_of(o200k, ids))
    assert (answer.reasoning, answer.content, calls(answer)) == (reasoning, content, called)
    assert answer.finish_reason == ("tool_calls" if called else "stop")
