"""JSON schemas as the TypeScript-like types in which gpt-oss was taught its tools.

What the form covers (objects, strings and their enums, numbers, booleans, arrays, `oneOf`, lists of types) is written
to the letter as the reference renderer writes it, odd line breaks included, since the model was trained on that text.
Everything else a schema may hold is written in plain TypeScript as well as it goes. No schema makes this fail.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

_SCALARS = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "null": "null"}

# A schema may be very deep, or double in size with every reference: past these limits types are not written out.
_MAX_DEPTH = 24
_MAX_REFERENCES = 200


def schema_to_type(schema: object) -> str:
    """Write a JSON schema as a type."""
    return _TypeWriter(schema).write(schema, "")


class _TypeWriter:
    def __init__(self, root: object) -> None:
        self._root = root
        self._depth = 0
        self._open_references: set[str] = set()
        self._references_left = _MAX_REFERENCES

    def write(self, schema: object, indent: str) -> str:
        if self._depth >= _MAX_DEPTH:
            return "any"
        self._depth += 1
        try:
            return self._write(schema, indent)
        finally:
            self._depth -= 1

    def _write(self, schema: object, indent: str) -> str:
        if schema is False:
            return "never"
        if not isinstance(schema, Mapping):
            return "any"
        if isinstance(variants := schema.get("oneOf"), list) and variants:
            return "".join(f"\n{indent} | {self._variant(variant, indent)}" for variant in variants)
        match schema.get("type"):
            case list() as types:
                return self._any_of_types(schema, types, indent)
            case str() as name:
                return self._of_type(schema, name, indent)
            case _:
                return self._untyped(schema, indent)

    def _variant(self, variant: object, indent: str) -> str:
        """One line of a `oneOf` that stands for itself, its comments after it."""
        comments = [*_text(variant, "description"), *_default(variant, enum_as_json=True)]
        return self._nullable(variant, indent + "   ") + (f" // {' '.join(comments)}" if comments else "")

    def _nullable(self, schema: object, indent: str) -> str:
        type_ = self.write(schema, indent)
        nullable = isinstance(schema, Mapping) and schema.get("nullable") is True
        return f"{type_} | null" if nullable and "null" not in type_ else type_

    def _any_of_types(self, schema: Mapping[str, Any], types: list[Any], indent: str) -> str:
        names = [name for name in types if isinstance(name, str)]
        if not names:
            return "any"
        if isinstance(values := schema.get("enum"), list) and values:
            return _union(map(_literal, values))
        # Without more to say about it, the form names `object` and `array` as they are.
        detailed = {"object": "properties", "array": "items"}
        return _union(
            self._of_type(schema, name, indent) if detailed.get(name) in schema else _SCALARS.get(name, name or "any")
            for name in names
        )

    def _of_type(self, schema: Mapping[str, Any], name: str, indent: str) -> str:
        if name == "object":
            return self._object(schema, indent)
        if name == "array":
            return self._array(schema, indent)
        values = schema.get("enum")
        if isinstance(values, list) and values and name in _SCALARS:
            # The form lists the strings of a string's enum and does not know others.
            strings = [f'"{value}"' for value in values if isinstance(value, str)]
            return _union(strings if name == "string" and strings else map(_literal, values))
        if "const" in schema:
            return _literal(schema["const"])
        return _SCALARS.get(name, "any")

    def _array(self, schema: Mapping[str, Any], indent: str) -> str:
        if "items" not in schema:
            return "Array<any>"
        items = schema["items"]
        item_type = self.write(items, indent)
        # The form puts `[]` straight after any type it knows, also after several.
        outside_form = isinstance(items, Mapping) and "type" not in items and "oneOf" not in items
        if outside_form and (" | " in item_type or " & " in item_type):
            return f"({item_type})[]"
        return f"{item_type}[]"

    def _object(self, schema: Mapping[str, Any], indent: str) -> str:
        lines = [f"{indent}// {text}\n" for text in _text(schema, "description")]
        lines.append("{\n")
        properties = schema.get("properties")
        required = schema.get("required")
        required_keys = required if isinstance(required, list) else []
        for key, value in properties.items() if isinstance(properties, Mapping) else ():
            name = f"{indent}{key}{'' if key in required_keys else '?'}:"
            if isinstance(value, Mapping) and isinstance(value.get("oneOf"), list) and value["oneOf"]:
                lines.extend(self._one_of_property(name, value, indent))
            else:
                lines.extend(self._property(name, value, indent))
        lines.append(f"{indent}}}")
        return "".join(lines)

    def _property(self, name: str, schema: object, indent: str) -> Iterator[str]:
        yield from _heading(schema, indent)
        default = "".join(f" // {text}" for text in _default(schema))
        yield f"{name} {self._nullable(schema, indent + '    ')},{default}\n"

    def _one_of_property(self, name: str, schema: Mapping[str, Any], indent: str) -> Iterator[str]:
        """A property of several types: a line for each, the comments of each behind it."""
        variants: list[Any] = schema["oneOf"]
        description = _text(schema, "description")
        # A description that the first variant repeats is written once, behind that variant.
        above = bool(description) and _text(variants[0], "description") != description
        yield from _heading(schema, indent, with_description=False)
        if above:
            yield f"{indent}// {description[0]}\n"
        yield from (f"{indent}// {text}\n" for text in _default(schema))
        yield f"{name}\n"
        for position, variant in enumerate(variants):
            own = _text(variant, "description")
            comments = [] if own == description or (position == 0 and above) else own
            comments = [*comments, *_default(variant)]
            trailing = f" // {' '.join(comments)}" if comments else ""
            yield f"{indent} | {self._nullable(variant, indent + '   ')}{trailing}\n"
        yield f"{indent},\n"

    def _untyped(self, schema: Mapping[str, Any], indent: str) -> str:
        """A schema without `type`: outside the form, so the nearest TypeScript."""
        if isinstance(reference := schema.get("$ref"), str):
            return self._reference(reference, indent)
        if "const" in schema:
            return _literal(schema["const"])
        if isinstance(values := schema.get("enum"), list) and values:
            return _union(map(_literal, values))
        for keyword, sign in (("anyOf", " | "), ("allOf", " & ")):
            if isinstance(parts := schema.get(keyword), list) and parts:
                return sign.join(dict.fromkeys(self.write(part, indent) for part in parts))
        if isinstance(schema.get("properties"), Mapping):
            return self._object(schema, indent)
        return self._array(schema, indent) if "items" in schema else "any"

    def _reference(self, reference: str, indent: str) -> str:
        """The type that a reference inside the schema points at; the bare name of any other, and inside itself."""
        name = reference.rsplit("/", 1)[-1] or "any"
        if not reference.startswith("#/") or reference in self._open_references or self._references_left == 0:
            return name
        target: object = self._root
        for key in reference[2:].split("/"):
            target = target.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        if target is None:
            return name
        self._references_left -= 1
        self._open_references.add(reference)
        type_ = self.write(target, indent)
        self._open_references.remove(reference)
        return type_


def _heading(schema: object, indent: str, *, with_description: bool = True) -> Iterator[str]:
    """The comment lines above a property."""
    yield from (f"{indent}// {title}\n{indent}//\n" for title in _text(schema, "title"))
    if with_description:
        yield from (f"{indent}// {text}\n" for text in _text(schema, "description"))
    examples = schema.get("examples") if isinstance(schema, Mapping) else None
    if isinstance(examples, list) and examples:
        yield f"{indent}// Examples:\n"
        yield from (f'{indent}// - "{example}"\n' for example in examples if isinstance(example, str))


def _text(schema: object, key: str) -> list[str]:
    """The text under `key`, as a list of one or none."""
    text = schema.get(key) if isinstance(schema, Mapping) else None
    return [text] if isinstance(text, str) else []


def _default(schema: object, *, enum_as_json: bool = False) -> list[str]:
    """The comment on a default value, as a list of one or none. A member of an enum mostly goes without quotes."""
    default = schema.get("default") if isinstance(schema, Mapping) else None
    if default is None:
        return []
    if isinstance(schema, Mapping) and isinstance(default, str):
        has_enum = isinstance(schema.get("enum"), list) and schema["enum"]
        if not has_enum:
            return [f'default: "{default}"']
        if not enum_as_json:
            return [f"default: {default}"]
    return [f"default: {_literal(default)}"]


def _literal(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _union(types: Iterator[str] | list[str]) -> str:
    return " | ".join(types)
