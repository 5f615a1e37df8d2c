"""What must hold for every sequence of ids, sense or nonsense."""

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from rose.chat.events import ContentDelta, ReasoningDelta, ToolCallDelta, ToolCallEnd, ToolCallStart
from rose.chat.harmony.format import HarmonyFormat
from rose.chat.merge import MergedAnswer, MergedToolCall, merge
from tests.chat.harmony_streams import WHOLE, WORDS, text_in_bodies, text_outside_whole_headers
from tests.chat.parsing import A, events_of
from tests.chat.promises import REASONS, check_events, is_empty
from tests.chat.tokenizers_for_tests import SPECIALS

ENGINE_REASONS = st.sampled_from(REASONS)


@st.composite
def streams(draw, tokenizer):
    """Ids with many control tokens and pieces of headers among them, and a few that mean nothing."""
    piece = st.one_of(
        st.sampled_from(SPECIALS).map(lambda name: [tokenizer.special_id(name)]),
        st.sampled_from(WORDS).map(tokenizer.encode),
        st.sampled_from(WHOLE).map(tokenizer.encode_with_special),
        st.integers(-2, tokenizer.vocab_size + 2).map(lambda token: [token]),
    )
    return [token for ids in draw(st.lists(piece, max_size=14)) for token in ids]


@settings(max_examples=1000)
@given(data=st.data(), reason=ENGINE_REASONS)
def test_never_raises_and_always_finishes_once(tiny, data, reason):
    tokens = data.draw(streams(tiny))
    events = events_of(tiny, tokens, reason)
    check_events(events, reason)


@settings(max_examples=1000)
@given(data=st.data(), reason=ENGINE_REASONS)
def test_the_promise_text_in_a_body_is_never_lost(tiny, data, reason):
    """Unless the model spoke for somebody else, an answer with text in a body is not empty, whatever its end."""
    tokens = data.draw(streams(tiny))
    answer = merge(events_of(tiny, tokens, reason))
    if text_in_bodies(tiny, tokens) and "foreign_role" not in answer.recovered:
        assert not is_empty(answer)


@settings(max_examples=1000)
@given(data=st.data())
def test_the_promise_a_natural_stop_is_never_empty(tiny, data):
    """When the model came to its own end, text outside bodies and whole headers is not lost either."""
    tokens = data.draw(streams(tiny))
    answer = merge(events_of(tiny, tokens))
    if text_outside_whole_headers(tiny, tokens) and "foreign_role" not in answer.recovered:
        assert not is_empty(answer)


@settings(max_examples=500)
@given(data=st.data(), reason=ENGINE_REASONS)
def test_rule_11_the_merged_answer_is_what_a_stream_adds_up_to(tiny, data, reason):
    """A client that adds up deltas by hand, in groups of any size, ends with the merged answer."""
    tokens = data.draw(streams(tiny))
    cuts = data.draw(st.lists(st.integers(1, 4), max_size=len(tokens)))
    parser = HarmonyFormat(tiny).parser()
    steps, position = [], 0
    for size in [*cuts, len(tokens)]:
        steps.append([event for token in tokens[position : position + size] for event in parser.push(token)])
        position += size
    steps.append(parser.finish(reason))
    texts = {"reasoning": "", "content": ""}
    calls: dict[int, list[str]] = {}
    complete: list[int] = []
    for events in steps:
        for event in events:
            match event:
                case ReasoningDelta():
                    texts["reasoning"] += event.text
                case ContentDelta():
                    texts["content"] += event.text
                case ToolCallStart():
                    calls[event.index] = [event.name, ""]
                case ToolCallDelta():
                    calls[event.index][1] += event.arguments
                case ToolCallEnd() if event.complete:
                    complete.append(event.index)
                case ToolCallEnd():
                    texts["content"] += calls[event.index][1]
    answer = merge(events_of(tiny, tokens, reason))
    assert answer == MergedAnswer(
        texts["reasoning"],
        texts["content"],
        tuple(MergedToolCall(*calls[index]) for index in complete),
        steps[-1][-1].reason,
        steps[-1][-1].recovered,
    )


@settings(max_examples=300)
@given(data=st.data())
def test_sections_tell_what_the_tokens_became(tiny, data):
    """Without doubtful or odd messages, the tokens of a section spell just that part of the answer."""
    parts = data.draw(st.lists(st.tuples(st.sampled_from(WHOLE[1:3]), st.sampled_from(WORDS)), max_size=5))
    tokens = [
        token
        for header, text in parts
        for token in tiny.encode_with_special(header) + tiny.encode(text) + tiny.encode_with_special("<|end|>")
    ]
    parser = HarmonyFormat(tiny).parser()
    by_section: dict[str, list[int]] = {"reasoning": [], "content": [], "control": []}
    events = []
    for token in tokens:
        events += parser.push(token)
        by_section[parser.section].append(token)
    answer = merge(events + parser.finish("stop"))
    assert tiny.decode(by_section["reasoning"]) == answer.reasoning
    assert tiny.decode(by_section["content"]) == answer.content


def test_cost_per_token(o200k, record_property):
    """A server parses tens of thousands of tokens a second on one core: the cost is a few microseconds each."""
    text = "The tide at Oban is high at four and low at ten. " * 100
    sample = (
        f"{A}<|channel|>analysis<|message|>{text}<|end|><|start|>assistant<|channel|>final<|message|>{text}<|return|>"
    )
    tokens = o200k.encode_with_special(sample)
    chat = HarmonyFormat(o200k)
    best = float("inf")
    for _ in range(5):
        parser = chat.parser()
        begin = time.process_time()
        for token in tokens:
            parser.push(token)
        parser.finish("stop")
        best = min(best, time.process_time() - begin)
    record_property("us_per_token", best / len(tokens) * 1e6)
    assert best / len(tokens) < 50e-6, "an order of magnitude above what a slow machine needs"


def test_the_cost_of_nonsense_is_linear(tiny):
    """No header can be built that is read over and over."""
    pieces = ["<|channel|>", "<|channel|>final", "<|channel|>final x y", "<|start|>", "<|constrain|>json", "<|end|>a b"]
    pieces += ["<|channel|>commentary to=functions.tide x", " to=functions.tide", "<|channel|>a b", "word "]
    long = [tiny.encode_with_special(piece) * 20_000 for piece in pieces]
    long += [tiny.encode_with_special(f"{mark}a{'!' * 50_000}b{' ' * 50_000}c<|message|>") for mark in SPECIALS]
    for tokens in long:
        begin = time.process_time()
        events_of(tiny, tokens)
        assert (time.process_time() - begin) / len(tokens) < 100e-6, tiny.decode(tokens[:20], keep_special=True)
