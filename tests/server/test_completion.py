"""Tokens to deltas: stop strings, counts and log-probabilities, without HTTP."""

from hypothesis import given
from hypothesis import strategies as st

from rose.chat.events import ContentDelta, Finished, ReasoningDelta, ToolCallDelta
from rose.chat.merge import merge
from rose.chat.registry import get_format
from rose.chat.tokenizer import Tokenizer
from rose.engine.messages import RequestOutput, TokenLogprobs
from rose.server.completion import Completion, CompletionDelta
from tests.chat.tokenizers_for_tests import tiny_tokenizer

TOKENIZER = Tokenizer(tiny_tokenizer())
FORMAT = get_format("harmony", TOKENIZER)
ANSWER = "<|channel|>analysis<|message|>Stop? No STOP.<|end|><|start|>assistant<|channel|>final<|message|>{}<|return|>"


def run(ids: list[int], sizes: list[int], stop: tuple[str, ...] = ()) -> tuple[Completion, list[CompletionDelta]]:
    """Feed the ids in steps of these sizes, over and over."""
    completion, deltas, at, turn = Completion(0, FORMAT.parser(), stop), [], 0, 0
    while at < len(ids):
        step = ids[at : at + sizes[turn % len(sizes)]]
        at, turn = at + len(step), turn + 1
        logprobs = [TokenLogprobs(-float(i), []) for i in step]
        reason = "stop" if at == len(ids) else None
        output = RequestOutput(request_id="r", token_ids=step, logprobs=logprobs, finish_reason=reason)
        if delta := completion.push(output):
            deltas.append(delta)
    return completion, deltas


def merged(deltas: list[CompletionDelta]):
    return merge([event for delta in deltas for event in delta.events])


@given(
    st.text(alphabet="aé€😀 STOP.", max_size=30),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.lists(st.text(alphabet="aé😀STOP", min_size=1, max_size=4), max_size=3),
)
def test_a_stop_string_cuts_the_content_wherever_the_steps_fall(text: str, sizes: list[int], stop: list[str]) -> None:
    completion, deltas = run(TOKENIZER.encode_with_special(ANSWER.format(text)), sizes, tuple(stop))
    answer = merged(deltas)
    assert answer.finish_reason == "stop"
    assert answer.reasoning == "Stop? No STOP.", "stop strings are for content"
    assert text.startswith(answer.content)
    assert all(string not in answer.content for string in stop)
    assert completion.found_stop_string == any(string in text for string in stop)
    if not completion.found_stop_string:
        assert answer.content == text

    told = [entry for delta in deltas for entry in delta.logprobs]
    content_ids = TOKENIZER.encode(text)
    assert [entry.token_id for entry in told] == content_ids[: len(told)]
    spelled = TOKENIZER.decode([entry.token_id for entry in told])
    if completion.found_stop_string:
        assert spelled.startswith(answer.content) or "\ufffd" in spelled
    else:
        assert len(told) == len(content_ids)


def test_what_comes_after_a_stop_string_is_neither_shown_nor_counted() -> None:
    ids = TOKENIZER.encode_with_special("<|channel|>final<|message|>one STOP two<|return|>")
    completion, deltas = run(ids, [1], (" STOP",))
    assert merged(deltas).content == "one"
    assert deltas[-1].events[-1] == Finished("stop")
    assert completion.is_finished
    assert completion.num_tokens < len(ids)


def test_arguments_of_a_tool_call_hold_no_stop_strings() -> None:
    text = '<|channel|>commentary to=functions.tide <|constrain|>json<|message|>{"p":"STOP"}<|call|>'
    completion, deltas = run(TOKENIZER.encode_with_special(text), [1], ("STOP",))
    answer = merged(deltas)
    assert (answer.tool_calls[0].arguments, answer.finish_reason) == ('{"p":"STOP"}', "tool_calls")
    assert not completion.found_stop_string


def test_text_held_back_comes_before_the_next_kind_of_event() -> None:
    call = "<|start|>assistant to=functions.tide<|channel|>commentary<|message|>{}<|call|>"
    text = "<|channel|>final<|message|>wait ST<|end|>" + call
    _, deltas = run(TOKENIZER.encode_with_special(text), [1], ("STOP",))
    kinds = [type(event).__name__ for delta in deltas for event in delta.events]
    assert kinds.index("ToolCallStart") > max(i for i, kind in enumerate(kinds) if kind == "ContentDelta")
    assert merged(deltas).content.strip() == "wait ST"


def test_one_step_with_many_tokens_makes_one_delta_of_each_kind() -> None:
    _, deltas = run(TOKENIZER.encode_with_special(ANSWER.format("High at 4.")), [100])
    assert [type(event) for event in deltas[0].events] == [ReasoningDelta, ContentDelta, Finished]


def test_tokens_are_counted_by_section() -> None:
    completion, _ = run(ids := TOKENIZER.encode_with_special(ANSWER.format("High.")), [1])
    assert completion.num_tokens == len(ids)
    assert completion.num_reasoning_tokens == len(TOKENIZER.encode("Stop? No STOP."))


def test_a_stop_id_of_the_clients_own_is_not_shown() -> None:
    ids = TOKENIZER.encode_with_special("<|channel|>final<|message|>ab")
    completion = Completion(0, FORMAT.parser(), own_stop_token_ids=(ids[-1],))
    delta = completion.push(RequestOutput(request_id="r", token_ids=ids, finish_reason="stop"))
    assert delta is not None
    assert merge(delta.events).content == TOKENIZER.decode(TOKENIZER.encode("ab")[:-1])
    assert completion.num_tokens == len(ids)


def test_long_arguments_arrive_in_pieces() -> None:
    text = '<|channel|>commentary to=functions.tide <|constrain|>json<|message|>{"p":"a long one"}<|call|>'
    _, deltas = run(TOKENIZER.encode_with_special(text), [1])
    pieces = [event for delta in deltas for event in delta.events if isinstance(event, ToolCallDelta)]
    assert len(pieces) > 1


def test_a_stop_string_in_text_without_a_channel_ends_the_completion_too() -> None:
    """The parser holds such text back to the very end, when the engine has nothing more to say."""
    for header, reason in (("<|message|>", "stop"), ("<|channel|>odd<|message|>", "length"), ("", "length")):
        completion = Completion(0, FORMAT.parser(), ("STOP",))
        ids = TOKENIZER.encode_with_special(f"{header}a b STOP c")
        assert completion.push(RequestOutput(request_id="r", token_ids=ids[:-1])) is None
        delta = completion.push(RequestOutput(request_id="r", token_ids=ids[-1:], finish_reason=reason))
        assert completion.is_finished
        answer = merged([delta])
        assert (answer.content, answer.finish_reason) == ("a b ", "stop")
