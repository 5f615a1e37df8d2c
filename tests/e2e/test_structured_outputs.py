"""Constrained answers of the bundled model behind the real server, at temperature 1.0, with the official client."""

import json
import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel, Field

import rose
from tests.e2e.server_process import ServerProcess

DEMO = Path(rose.__file__).parent / "assets" / "rose-demo"
pytestmark = pytest.mark.skipif(not (DEMO / "config.json").exists(), reason="rose-demo is not there")

WORDS = re.findall(r"\S+", "what is the sum weather in Paris 127 + 385 tell me a joke spell banana backwards { } ? é")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "mood": {"enum": ["good", "bad", None]},
    },
    "required": ["name", "age", "mood"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "person": PERSON,
    "list": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "array",
        "items": {"anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": 1, "maximum": 9}]},
        "minItems": 1,
        "maxItems": 4,
    },
    "nested": {
        "$defs": {
            "point": {
                "type": "object",
                "properties": {"x": {"type": "integer", "maximum": 99, "minimum": -99}},
                "required": ["x"],
                "additionalProperties": False,
            }
        },
        "type": "object",
        "properties": {
            "at": {"$ref": "#/$defs/point"},
            "day": {"type": "string", "format": "date"},
        },
        "required": ["at", "day"],
        "additionalProperties": False,
    },
    "open": {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"], "maxProperties": 1},
}


def tool(name: str, parameters: dict[str, Any] | None = None, *, strict: bool = False) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("rose-demo") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=100) as client:
        yield client


def prompts(count: int) -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(count)]


def ask(client: OpenAI, text: str, **options: Any):
    options = {"messages": [{"role": "user", "content": text}], "temperature": 1.0, "max_tokens": 700} | options
    return client.chat.completions.create(model="rose-demo", **options)


def all_at_once(jobs: list[Any], run: Any) -> list[Any]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(run, jobs))


def test_thirty_random_prompts_with_each_schema_give_valid_json(client: OpenAI) -> None:
    def check(job: tuple[int, str]) -> str:
        seed, prompt = job
        name = list(SCHEMAS)[seed % len(SCHEMAS)]
        form = {"type": "json_schema", "json_schema": {"name": name, "schema": SCHEMAS[name], "strict": True}}
        choice = ask(client, prompt, response_format=form, seed=seed).choices[0]
        if choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.message.content), SCHEMAS[name])
        return choice.finish_reason

    reasons = all_at_once(list(enumerate(prompts(30))), check)
    assert reasons.count("stop") >= 28, reasons  # reasoning is free, also to ramble


def test_json_objects_streamed_with_reasoning(client: OpenAI) -> None:
    stream = ask(client, "What is 127 + 385?", temperature=0, response_format={"type": "json_object"}, stream=True)
    content = reasoning = ""
    for chunk in stream:
        content += chunk.choices[0].delta.content or ""
        reasoning += getattr(chunk.choices[0].delta, "reasoning", None) or ""
    assert isinstance(json.loads(content), dict)
    assert "<|" not in content + reasoning


class Mood(StrEnum):
    GOOD = "good"
    BAD = "bad"


class Report(BaseModel):
    total: int = Field(ge=0, le=9999)
    mood: Mood
    tags: list[Mood] = Field(max_length=3)


def test_the_clients_parse_helper(client: OpenAI) -> None:
    message = {"role": "user", "content": "What is 127 + 385?"}
    for seed in range(2):
        answer = client.chat.completions.parse(
            model="rose-demo", messages=[message], response_format=Report, max_tokens=700, seed=seed
        )
        assert isinstance(answer.choices[0].message.parsed, Report)
    with client.chat.completions.stream(
        model="rose-demo", messages=[message], response_format=Report, max_tokens=700, seed=5
    ) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Report)
    response = client.responses.parse(
        model="rose-demo", input="What is 127 + 385?", text_format=Report, max_output_tokens=700
    )
    assert isinstance(response.output_parsed, Report)


@pytest.mark.parametrize("stream", [False, True])
def test_calls_are_forced_where_nobody_needs_them(client: OpenAI, stream: bool) -> None:
    tools = [tool("wind"), tool("note_person", PERSON, strict=True)]

    def call(seed: int) -> tuple[str, str, str]:
        choice = "required" if seed % 2 else {"type": "function", "function": {"name": "note_person"}}
        options = {"tools": tools, "tool_choice": choice, "seed": seed, "parallel_tool_calls": False}
        if not stream:
            [answer] = ask(client, "What is 127 + 385?", **options).choices
            [made] = answer.message.tool_calls
            return answer.finish_reason, made.function.name, made.function.arguments
        name, arguments, reason = "", "", ""
        for chunk in ask(client, "What is 127 + 385?", stream=True, **options):
            for delta in chunk.choices[0].delta.tool_calls or ():
                name += delta.function.name or ""
                arguments += delta.function.arguments or ""
            reason = chunk.choices[0].finish_reason or reason
        return reason, name, arguments

    for reason, name, arguments in all_at_once(list(range(6)), call):
        assert reason == "tool_calls"
        assert name in ("wind", "note_person")
        jsonschema.validate(json.loads(arguments), PERSON if name == "note_person" else {"const": {}})


def test_a_form_and_tools_at_once(client: OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    for seed in range(2):
        [answer] = ask(client, "hello", seed=seed, tools=[tool("wind")], response_format=form).choices
        if answer.finish_reason == "stop":
            jsonschema.validate(json.loads(answer.message.content), PERSON)
        else:
            assert answer.finish_reason in ("tool_calls", "length")


@pytest.mark.parametrize(
    ("extension", "pattern"),
    [
        ({"guided_regex": r"\d{3}-[a-f]{2}"}, r"\d{3}-[a-f]{2}"),
        ({"guided_choice": ["yes", "no", "per\nhaps"]}, r"yes|no|per\nhaps"),
        ({"structured_outputs": {"grammar": 'root ::= "a" b\nb ::= [0-9] | "(" b ")"'}}, r"a\(*\d\)*"),
    ],
)
def test_extensions(client: OpenAI, extension: dict[str, Any], pattern: str) -> None:
    answer = ask(client, "What is 127 + 385?", n=3, seed=1, extra_body=extension)
    assert [c.message.content for c in answer.choices if not re.fullmatch(pattern, c.message.content)] == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"guided_regex": r" \d{3}-[a-f]{2}\."}, r" \d{3}-[a-f]{2}\."),
        ({"guided_choice": [" yes", " no", "per\nhaps"]}, r" yes| no|per\nhaps"),
        ({"structured_outputs": {"grammar": 'root ::= "a" b\nb ::= [0-9] | "(" b ")"'}}, r"a\(*\d\)*"),
        ({"guided_json": PERSON}, None),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}}, None),
    ],
)
def test_plain_completions_take_a_form(client: OpenAI, form: dict[str, Any], pattern: str | None, stream: bool) -> None:
    options: dict[str, Any] = {"model": "rose-demo", "prompt": ["127 + 385 =", "A person:"], "n": 2, "seed": 1}
    made = client.completions.create(**options, max_tokens=120, stream=stream, extra_body=form)
    texts, reasons = [""] * 4, [""] * 4
    for answer in made if stream else [made]:
        for choice in answer.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    for text, reason in zip(texts, reasons, strict=True):
        if pattern is not None:
            assert (bool(re.fullmatch(pattern, text)), reason) == (True, "stop"), text
        elif reason == "stop":
            jsonschema.validate(json.loads(text), PERSON)
    assert "stop" in reasons


def test_a_cut_answer_says_so(client: OpenAI) -> None:
    [answer] = ask(client, "hello", response_format={"type": "json_object"}, max_tokens=5).choices
    assert answer.finish_reason == "length"


def test_refusals_leave_others_alone(client: OpenAI) -> None:
    unique = {"type": "array", "uniqueItems": True}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": unique}}
    for options, param in (
        ({"response_format": form, "stream": True}, "response_format"),
        ({"tools": [tool("t", {"type": "object", "properties": {"a": unique}}, strict=True)]}, "tools[0]"),
        ({"extra_body": {"guided_regex": "("}}, "guided_regex"),
    ):
        with pytest.raises(BadRequestError) as refused:
            ask(client, "hi", **options)
        assert (refused.value.param, refused.value.code) == (param, "unsupported_grammar")
    many = " | ".join(f"/[a-z]+/ /{i}/" for i in range(3000))
    with pytest.raises(BadRequestError) as too_large:
        ask(client, "hi", extra_body={"guided_grammar": f"start: {many}"})
    assert too_large.value.code == "grammar_error"
    assert "512" in ask(client, "What is 127 + 385?", temperature=0).choices[0].message.content
