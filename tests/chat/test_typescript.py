"""JSON schemas as types: the letter of the form where there is one, and something readable everywhere else."""

import json

import openai_harmony as oh
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.chat.harmony.typescript import schema_to_type

WORDS = st.sampled_from(["tide", "Oban", "a b", 'say "hi"', "two\nlines", "é", ""])
NAMES = st.sampled_from(["place", "hour", "unit", "with space", "naïve", "x-y"])
DEFAULTS = st.one_of(WORDS, st.integers(-9, 9), st.booleans(), st.just([1, "a"]), st.just({"k": 1.5}))


def with_comments(schemas):
    """Schemas of the form with the annotations it knows."""
    optional = {"title": WORDS, "description": WORDS, "default": DEFAULTS, "nullable": st.booleans()}
    optional["examples"] = st.lists(st.one_of(WORDS, st.integers()), max_size=2)
    notes = st.fixed_dictionaries({}, optional=optional)
    # A list of types with details is written out more fully than the reference does.
    return st.builds(lambda schema, note: schema | note, schemas, notes)


SCALARS = with_comments(
    st.one_of(
        st.sampled_from([{"type": name} for name in ("string", "number", "integer", "boolean", "array", "object")]),
        st.just({"type": ["string", "null"]}),
        st.just({"type": ["integer", "string"]}),
        st.lists(WORDS, min_size=1, max_size=3).map(lambda words: {"type": "string", "enum": words}),
    )
)


def nested(children):
    properties = st.dictionaries(NAMES, children, max_size=3)
    objects = st.builds(
        lambda found, required: {"type": "object", "properties": found, "required": required},
        properties,
        st.lists(NAMES, max_size=2),
    )
    arrays = children.map(lambda items: {"type": "array", "items": items})
    one_of = st.lists(children, min_size=1, max_size=3).map(lambda variants: {"oneOf": variants})
    return with_comments(st.one_of(objects, arrays, one_of))


IN_FORM = st.recursive(SCALARS, nested, max_leaves=8)


def reference_type(oracle: oh.HarmonyEncoding, schema) -> str:
    tools = [oh.ToolDescription.new("f", "", schema)]
    message = oh.Message.from_role_and_content(oh.Role.DEVELOPER, oh.DeveloperContent.new().with_function_tools(tools))
    text = oracle.decode(oracle.render(message))
    return text[text.index("(_: ") + len("(_: ") : text.rindex(") => any;")]


@settings(max_examples=200)
@given(schema=IN_FORM)
def test_agrees_with_the_reference_within_the_form(oracle, schema):
    assert schema_to_type(schema) == reference_type(oracle, schema)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, "any"),
        (False, "never"),
        (None, "any"),
        ({}, "any"),
        ("string", "any"),
        ({"type": "null"}, "null"),
        ({"type": "money"}, "any"),
        ({"type": 7}, "any"),
        ({"type": []}, "any"),
        ({"const": "tide"}, '"tide"'),
        ({"type": "integer", "const": 3}, "3"),
        ({"enum": [1, 2.5, "a", None, True]}, '1 | 2.5 | "a" | null | true'),
        ({"type": "integer", "enum": [1, 2]}, "1 | 2"),
        ({"type": "string", "enum": []}, "string"),
        ({"type": ["string", "null"], "enum": ["a", None]}, '"a" | null'),
        ({"type": ["array", "null"], "items": {"type": "string"}}, "string[] | null"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string | null"),
        ({"anyOf": [{"type": "string"}, {"type": "string", "format": "uri"}]}, "string"),
        ({"anyOf": "nonsense"}, "any"),
        ({"allOf": [{"$ref": "#/$defs/A"}, {"type": "string"}], "$defs": {"A": {"type": "number"}}}, "number & string"),
        ({"items": {"type": "string"}}, "string[]"),
        ({"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "number"}]}}, "(string | number)[]"),
        ({"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}, "number[][]"),
        ({"type": "array", "items": True}, "any[]"),
        ({"type": "array", "items": [{"type": "string"}]}, "any[]"),
        ({"properties": {"a": {"type": "string"}}}, "{\na?: string,\n}"),
        ({"type": "object", "properties": {"a": True, "b": False}}, "{\na?: any,\nb?: never,\n}"),
        ({"type": "object", "properties": [1], "required": "a"}, "{\n}"),
        ({"$ref": "#/$defs/A~1B", "$defs": {"A/B": {"type": "boolean"}}}, "boolean"),
        ({"$ref": "#/$defs/Missing"}, "Missing"),
        ({"$ref": "https://example.com/Tide"}, "Tide"),
        ({"$ref": "#/"}, "any"),
    ],
)
def test_outside_the_form(schema, expected):
    assert schema_to_type(schema) == expected


def test_a_schema_that_refers_to_itself():
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert schema_to_type(tree).endswith("}")
    assert len(schema_to_type({"$ref": "#"})) < 20


def test_references_that_double_stay_small():
    twice = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(20)}
    double = {
        f"d{n}": {"type": "object", "properties": {key: {"$ref": f"#/$defs/d{n + 1}"} for key in "ab"}}
        for n in range(20)
    }
    for definitions in (twice, double):
        assert len(schema_to_type({"$ref": "#/$defs/d0", "$defs": definitions})) < 50_000


def test_a_schema_of_any_depth():
    deep: dict = {"type": "string"}
    for _ in range(5_000):
        deep = {"type": "array", "items": deep}
    assert schema_to_type(deep).startswith("any[]")


KEYWORDS = st.sampled_from(
    (
        *("type", "oneOf", "anyOf", "allOf", "enum", "const", "items", "properties", "required", "$ref"),
        *("description", "title", "examples", "default", "nullable"),
    )
)
JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just("object"), st.just("#/a")
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(KEYWORDS, st.text(max_size=3)), inner, max_size=4),
        st.dictionaries(KEYWORDS, inner, max_size=4),
    ),
    max_leaves=15,
)


@settings(max_examples=300)
@given(schema=st.dictionaries(KEYWORDS, JSON, max_size=5))
def test_no_schema_makes_it_fail(schema):
    assert schema_to_type(schema)
    json.dumps(schema_to_type(schema))
