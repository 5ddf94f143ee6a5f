"""What each vendor's validator refuses of a tool's schema, in its own words: written from what the vendors publish and
from public reports of their errors, not from perdure's translation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from tests.servers.wire import words

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "not", "if", "then", "else", "contains", "propertyNames")
_OPEN = ("additionalProperties", "unevaluatedProperties", "unevaluatedItems")
_GEMINI_KEYWORDS = words("""
    $id $anchor $ref $defs type format title description enum items prefixItems minItems maxItems minimum maximum anyOf
    oneOf properties additionalProperties required propertyOrdering""")
_GEMINI_FORMATS = words("date-time date time enum int32 int64 float double")


def iter_inner(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas directly in ``schema``, each with its keyword."""
    for key in _MAPS:
        yield from ((key, inner) for inner in schema.get(key, {}).values())
    for key in _LISTS:
        yield from ((key, inner) for inner in schema.get(key, ()))
    yield from ((key, schema[key]) for key in (*_SINGLE, *_OPEN) if key in schema)


def _walk(schema: Any, keyword: str = "") -> Iterator[tuple[str, Any]]:
    yield keyword, schema
    if isinstance(schema, dict):
        for key, inner in iter_inner(schema):
            yield from _walk(inner, key)


def _has_type(schema: dict[str, Any], name: str) -> bool:
    kind = schema.get("type")
    return kind == name or (isinstance(kind, list) and name in kind)


def _find_draft_flaws(schema: Any) -> Iterator[str]:
    from jsonschema import Draft202012Validator, SchemaError  # here: servers of tests without tools do without

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        yield f"JSON schema is invalid. It must match JSON Schema draft 2020-12 ({error.message:.200})"


def _find_reference_flaws(root: dict[str, Any], prefixes: tuple[str, ...]) -> Iterator[str]:
    known = {f"{prefix}{name}" for prefix in prefixes for name in root.get(prefix[2:-1], {})} | {"#"}
    for _, schema in _walk(root):
        if isinstance(schema, dict) and "$ref" in schema and schema["$ref"] not in known:
            yield f"reference {schema['$ref']} can only point to definitions defined at the top level of the schema"


def find_openai_flaws(schema: Any) -> Iterator[str]:
    """Chat completions and Responses, with ``strict`` off."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        yield "schema must be a JSON Schema of 'type: \"object\"'"
        return
    if found := {"anyOf", "oneOf", "allOf", "enum", "const", "not"} & schema.keys():
        yield f"schema must have type 'object' and not have {sorted(found)} at the top level"
    yield from (drafts := list(_find_draft_flaws(schema)))
    if drafts:
        return
    yield from _find_reference_flaws(schema, ("#/$defs/", "#/definitions/"))
    for keyword, inner in _walk(schema):
        if isinstance(inner, bool):
            if keyword not in _OPEN:
                yield f"{inner} is not of type 'object'"
            continue
        if _has_type(inner, "array") and not isinstance(inner.get("items"), dict):
            yield "array schema missing items"
        if _has_type(inner, "object") and "properties" not in inner:
            yield "object schema missing properties"
        if re.search(r"\(\?<?[=!]", str(inner.get("pattern", ""))):
            yield "regex lookaround is not supported"


def find_anthropic_flaws(schema: Any) -> Iterator[str]:
    """Messages: ``input_schema``."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        yield "input_schema.type: Input should be 'object'"
        return
    if {"anyOf", "oneOf", "allOf"} & schema.keys():
        yield "input_schema does not support oneOf, allOf, or anyOf at the top level"
    yield from (drafts := list(_find_draft_flaws(schema)))
    for name in () if drafts else schema.get("properties", {}):
        if not re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name):
            yield f"Property keys should match pattern '^[a-zA-Z0-9_.-]{{1,64}}$': {name}"


def find_google_flaws(schema: Any) -> Iterator[str]:
    """``parametersJsonSchema``."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        yield "parameters schema should be of type OBJECT"
        return
    yield from (drafts := list(_find_draft_flaws(schema)))
    if drafts:
        return
    yield from _find_reference_flaws(schema, ("#/$defs/",))
    for name in schema.get("properties", {}):
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}", name):
            yield f"parameter {name}: must start with a letter or an underscore, with a maximum length of 64"
    for keyword, inner in _walk(schema):
        if isinstance(inner, bool):
            if keyword not in _OPEN:
                yield f"{keyword}: {inner} is not a schema"
            continue
        yield from _find_node_flaws(inner)
    if _measure_levels(schema) > 33:
        yield "Message too deep. Max recursion depth reached"
    yield from _find_cycles(schema)


def _find_node_flaws(schema: dict[str, Any]) -> Iterator[str]:
    for key in schema.keys() - _GEMINI_KEYWORDS:
        yield f'Unknown name "{key}": Cannot find field.'
    if "$ref" in schema and (beside := [key for key in schema if not key.startswith("$")]):
        yield f"$ref stands with {beside}"
    if schema.get("format", "date") not in _GEMINI_FORMATS:
        yield f"format {schema['format']} is not supported"
    values = schema.get("enum", ["x"])
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if not values or not (numbers or all(isinstance(value, str) for value in values)):
        yield "enum: only texts or only numbers"
    if "" in values:
        yield "enum[0]: cannot be empty"
    if _has_type(schema, "array") and not {"items", "prefixItems"} & schema.keys():
        yield "items: missing field."
    for name in schema.get("required", ()):
        if name not in schema.get("properties", {}):
            yield f"required: property is not defined: {name}"


def _measure_levels(value: Any) -> int:
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if values is None else 1 + max(map(_measure_levels, values), default=0)


def _list_required_references(schema: Any) -> Iterator[str]:
    """References that an instance cannot do without leaving out a property."""
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        yield schema["$ref"].removeprefix("#/$defs/")
    for name, inner in schema.get("properties", {}).items():
        if name in schema.get("required", ()):
            yield from _list_required_references(inner)
    for key, inner in iter_inner(schema):
        if key not in ("properties", "$defs"):
            yield from _list_required_references(inner)


def _find_cycles(root: dict[str, Any]) -> Iterator[str]:
    targets = {name: set(_list_required_references(schema)) for name, schema in root.get("$defs", {}).items()}
    for start in targets:
        seen: set[str] = set()
        waiting = [*targets[start]]
        while waiting:
            name = waiting.pop()
            if name == start:
                yield f"cyclic reference to {start} outside of a property that is not required"
                break
            if name not in seen:
                seen.add(name)
                waiting += targets.get(name, ())


FLAWS = {
    "openai": find_openai_flaws,
    "openai-responses": find_openai_flaws,
    "anthropic": find_anthropic_flaws,
    "google": find_google_flaws,
}


@lru_cache(maxsize=1024)
def _find_flaws(format: str, text: str) -> tuple[str, ...]:
    return tuple(FLAWS[format](json.loads(text)))


def find_flaws(format: str, schema: Any) -> tuple[str, ...]:
    """The flaws of ``schema`` in the wire format; a server is sent the same ones with each request."""
    return _find_flaws(format, json.dumps(schema))


def explain(schema: Any) -> str:
    """A schema for the text of a failed assertion."""
    return json.dumps(schema, ensure_ascii=False, indent=1)[:4000]
