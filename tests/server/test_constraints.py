"""What clients demand of the answer, from the body to the grammar that the engine gets."""

from typing import Any

import pytest

from rose.chat.answer_format import ToolChoice
from rose.server.constraints import answer_format, tool_choice
from tests.server.conftest import Serve, read_stream

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "object", "properties": {"high": {"type": "integer"}}, "required": ["high"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "tide", "schema": SCHEMA, "strict": True}}
TIDE = {"type": "function", "function": {"name": "tide", "parameters": SCHEMA}}
WIND = {"type": "function", "function": {"name": "wind"}}
NAMED = {"type": "function", "function": {"name": "tide"}}
FLAT = {"type": "function", "name": "tide"}


async def grammar_of(serve: Serve, **body: Any) -> str | None:
    async with serve() as server:
        response = await server.chat(**body)
        assert response.status_code == 200, response.text
        assert "x-rose-ignored-fields" not in response.headers
        return server.engine.submitted[0].sampling_params.grammar


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"response_format": {"type": "text"}},
        {"tools": [TIDE], "tool_choice": "auto", "parallel_tool_calls": False},
        {"tools": [TIDE], "tool_choice": "none"},
        {"structured_outputs": None, "guided_regex": None},
    ],
)
async def test_nothing_demanded_is_no_grammar(serve: Serve, body: dict[str, Any]) -> None:
    assert await grammar_of(serve, **body) is None


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ({"response_format": FORMAT}, '"high"'),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, '"high"'),
        ({"response_format": {"type": "json_object"}}, '"type": "object"'),
        ({"guided_json": SCHEMA}, '"high"'),
        ({"guided_json": '{"type": "integer"}'}, '"integer"'),
        ({"guided_regex": "[ab]/c"}, r"/[ab]\/c/"),
        ({"guided_choice": ["yes", 'n"o']}, '/yes|n"o/'),
        ({"guided_grammar": 'root ::= "x" y\ny ::= [0-9]'}, "%lark"),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, '"high"'),
        ({"structured_outputs": {"json_object": True}}, '"type": "object"'),
        ({"structured_outputs": {"choice": ["yes"]}}, "/yes/"),
    ],
)
async def test_a_form_of_the_answer(serve: Serve, body: dict[str, Any], rule: str) -> None:
    grammar = await grammar_of(serve, **body)
    assert grammar is not None
    start, *rules = grammar.splitlines()
    assert start == "start: reasoning* final"
    assert rule in next(line for line in rules if line.startswith("final_body: "))


@pytest.mark.parametrize(
    ("choice", "calls"),
    [
        ("required", "call: call_0 | call_1"),
        (NAMED, "call: call_0"),
        (FLAT, "call: call_0"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}, "call: call_0"),
        ({"type": "allowed_tools", "mode": "required", "tools": [FLAT]}, "call: call_0"),
    ],
)
async def test_a_forced_call(serve: Serve, choice: Any, calls: str) -> None:
    grammar = await grammar_of(serve, tools=[TIDE, WIND], tool_choice=choice)
    assert grammar is not None
    assert grammar.startswith("start: (reasoning | preamble)* call\n")
    assert calls in grammar.splitlines()
    assert "final" not in grammar


async def test_allowed_tools_need_not_be_called(serve: Serve) -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [FLAT]}
    grammar = await grammar_of(serve, tools=[WIND, TIDE], tool_choice=choice)
    assert grammar is not None
    assert "(final | call)" in grammar
    assert "call: call_1" in grammar.splitlines()


async def test_strict_tools_bind_a_free_choice(serve: Serve) -> None:
    strict = {"type": "function", "function": {"name": "tide", "parameters": SCHEMA, "strict": True}}
    grammar = await grammar_of(serve, tools=[strict])
    assert grammar is not None
    assert "final_body: TEXT" in grammar.splitlines()


async def test_the_model_is_told_of_the_schema(serve: Serve, tokenizer) -> None:
    async with serve() as server:
        await server.chat(response_format=FORMAT)
        prompt = tokenizer.decode(server.engine.submitted[0].prompt_token_ids)
    assert "# Response Formats\n\n## tide\n\n" in prompt


async def test_what_cannot_be_enforced_is_refused_before_anything_is_generated(serve: Serve) -> None:
    schema = {"type": "array", "uniqueItems": True}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    async with serve() as server:
        for stream in (False, True):
            response = await server.chat(response_format=wanted, stream=stream)
            assert response.status_code == 400
            error = response.json()["error"]
            assert (error["param"], error["code"]) == ("response_format", "unsupported_grammar")
            assert "uniqueItems" in error["message"]
        assert server.engine.submitted == []


async def test_completions_streams_and_stops_are_as_ever(serve: Serve) -> None:
    sampled = '<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>final<|message|>{"high":4}<|return|>'
    async with serve(sampled) as server:
        body = {"response_format": FORMAT, "n": 2, "logprobs": True, "stop": ["4"], "reasoning_effort": "high"}
        whole = (await server.chat(**body)).json()
        assert [choice["message"]["content"] for choice in whole["choices"]] == ['{"high":'] * 2
        assert [choice["message"]["reasoning"] for choice in whole["choices"]] == ["x"] * 2
        assert all(choice["logprobs"]["content"] for choice in whole["choices"])
        stream = read_stream(await server.chat(**body, stream=True))
        assert [stream.text("content", index) for index in (0, 1)] == ['{"high":'] * 2


async def test_the_responses_apis_flat_shape() -> None:
    wanted = answer_format({"type": "json_schema", "name": "tide", "schema": SCHEMA}, param="text.format")
    assert wanted is not None
    assert (wanted.schema, wanted.name, wanted.param) == (SCHEMA, "tide", "text.format")
    assert tool_choice(FLAT) == tool_choice(NAMED) == ToolChoice("required", ("tide",))
    assert tool_choice("none") is None
