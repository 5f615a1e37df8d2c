"""The writer, fed with every order of events that a parser can bring: what it tells always adds up."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.chat.events import (
    ChatEvent,
    ContentDelta,
    Finished,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from rose.chat.tokenizer import Tokenizer
from rose.server.builtin_tools.result import ToolResult
from rose.server.completion import CompletionDelta
from rose.server.generation import Usage
from rose.server.logprobs import LogprobSpeller
from rose.server.responses.objects import ReasoningOptions, Response
from rose.server.responses.writer import ResponseWriter

BUILTINS = ("python", "browser.search", "browser.open")
TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


@st.composite
def calls(draw: st.DrawFn) -> list[ChatEvent]:
    name = draw(st.sampled_from((*BUILTINS, "tide")))
    pieces = draw(st.lists(TEXTS | st.just('{"query": "x"}'), max_size=3))
    return [
        ToolCallStart(0, name),
        *(ToolCallDelta(0, piece) for piece in pieces),
        ToolCallEnd(0, draw(st.just(True) | st.booleans())),
    ]


SEGMENTS = st.one_of(
    st.lists(TEXTS.map(ReasoningDelta), min_size=1, max_size=3),
    st.lists(TEXTS.map(ContentDelta), min_size=1, max_size=3),
    calls(),
)
GENERATIONS = st.tuples(st.lists(SEGMENTS, max_size=4), st.sampled_from(["stop", "length", "tool_calls"]))


@pytest.fixture(scope="module")
def speller(tokenizer: Tokenizer) -> LogprobSpeller:
    return LogprobSpeller(tokenizer)


@settings(max_examples=300)
@given(
    generations=st.lists(GENERATIONS, min_size=1, max_size=4),
    as_summary=st.booleans(),
    include=st.sets(st.sampled_from(["code_interpreter_call.outputs", "web_search_call.results"])),
    ending=st.sampled_from(["finish", "cancel"]),
    fails=st.booleans(),
)
def test_items_and_events_add_up(
    speller: LogprobSpeller, generations: Any, as_summary: bool, include: set[str], ending: str, fails: bool
) -> None:
    response = Response(
        id="resp_1",
        created_at=0,
        model="m",
        reasoning=ReasoningOptions("low", None),
        temperature=1.0,
        text={},
        top_p=1.0,
    )
    writer = ResponseWriter(
        response, speller, is_builtin=BUILTINS.__contains__, include=include, reasoning_as_summary=as_summary
    )
    events = list(writer.opening())
    told = {"reasoning": "", "content": ""}
    for segments, reason in generations:
        chat_events = [event for segment in segments for event in segment]
        told["reasoning"] += "".join(e.text for e in chat_events if isinstance(e, ReasoningDelta))
        told["content"] += "".join(e.text for e in chat_events if isinstance(e, ContentDelta))
        events += writer.events(CompletionDelta(0, [*chat_events, Finished(reason)], ()))
        assert reason != "length" or writer.pending_call is None, "there is no token left to go on with"
        if writer.pending_call is None:
            break
        events += writer.running()
        events += writer.take_result(ToolResult("4", failed=fails, sources=("https://a.b",)))
    events += [writer.finish(Usage(1))] if ending == "finish" else writer.cancel(Usage(1))

    plain = [msgspec.to_builtins(event) for event in events]
    assert [event["sequence_number"] for event in plain] == list(range(len(plain)))
    output = plain[-1]["response"]["output"]
    added = [event for event in plain if event["type"].endswith("item.added")]
    done = [event for event in plain if event["type"].endswith("item.done")]
    assert [event["item"] for event in done] == output
    assert [event["output_index"] for event in added] == [event["output_index"] for event in done]
    assert [event["output_index"] for event in done] == list(range(len(output)))
    assert [event["item"]["id"] for event in added] == [item["id"] for item in output]
    assert all(item["status"] != "in_progress" for item in output)
    open_index = -1
    for event in plain:  # an item's events all come between its beginning and its end
        if event["type"].endswith("item.added"):
            open_index = event["output_index"]
        elif "output_index" in event:
            assert event["output_index"] == open_index
    parts = [(item, part) for item in output for part in [*item.get("content", ()), *item.get("summary", ())]]
    assert "".join(part["text"] for item, part in parts if item["type"] == "reasoning") == told["reasoning"]
    assert "".join(part["text"] for item, part in parts if item["type"] == "message") == told["content"]
    kept = msgspec.to_builtins(writer.kept_items)
    assert [(item["id"], item["status"]) for item in kept] == [(item["id"], item["status"]) for item in output]
    for item in kept:
        if item["type"] in ("code_interpreter_call", "web_search_call"):
            has_result = bool(item["outputs"] if item["type"] == "code_interpreter_call" else item["results"])
            assert has_result is (item["status"] != "incomplete"), "only what was run is done"
    for item in output:
        if item["type"] == "code_interpreter_call" and item["status"] in ("completed", "failed"):
            has_outputs = "code_interpreter_call.outputs" in include
            assert item["outputs"] == ([{"type": "logs", "logs": "4"}] if has_outputs else None)
        if item["type"] == "web_search_call":
            assert ("results" in item) is ("web_search_call.results" in include)
            assert not {"recipient", "arguments"} & item.keys()
