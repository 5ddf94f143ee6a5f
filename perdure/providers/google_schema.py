"""A tool's JSON Schema in the dialect that Gemini's ``parametersJsonSchema`` takes.

The API knows a part of JSON Schema. Where a keyword has a twin there, it becomes that; what has none is said in the
description, so that the model knows it all the same (the engine checks the arguments against the whole schema).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

KEPT = {
    *("$id", "$anchor", "$ref", "$defs", "type", "format", "title", "description", "enum", "items", "prefixItems"),
    *("minItems", "maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties"),
    *("required", "propertyOrdering"),
}
"""Keywords that the API documents."""
FORMATS = frozenset(["date-time", "date", "time", "enum", "int32", "int64", "float", "double"])
_SILENT = frozenset(("$schema", "$comment", "discriminator", "deprecated", "readOnly", "writeOnly", "title"))
"""What says nothing that a model needs."""
_NAMED = ("properties", "$defs")
_LISTED = ("anyOf", "oneOf", "prefixItems")


def translate_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """``schema`` of a tool's arguments as Gemini takes it; None for a tool without arguments."""
    translated = _schema(schema)
    if translated.keys() <= {"type", "properties", "required", "additionalProperties"} and not (
        translated.get("properties") or translated.get("additionalProperties")
    ):
        return None
    return translated


def _schema(schema: object) -> dict[str, Any]:
    if not isinstance(schema, Mapping):
        return {}  # true, which allows everything; false has no twin
    schema = _one_of_all(dict(schema))
    if "definitions" in schema:
        schema["$defs"] = {**schema.pop("definitions"), **schema.get("$defs", {})}
    if "$ref" in schema:
        return _reference(schema)
    out: dict[str, Any] = {}
    said: list[str] = []
    for key, value in schema.items():
        if key == "const":
            _enum([value], out, said)
        elif key == "enum":
            _enum(list(value), out, said)
        elif key == "format" and value not in FORMATS:
            said.append(f"format: {value}")
        elif key in ("exclusiveMinimum", "exclusiveMaximum") and schema.get("type") == "integer":
            out[key.replace("exclusiveM", "m")] = value + (1 if key.endswith("Minimum") else -1)
        elif key in _SILENT:
            pass
        elif key in KEPT:
            out[key] = _nested(key, value)
        else:
            said.append(f"{key}: {json.dumps(value, ensure_ascii=False)}")
    if said:
        out["description"] = " ".join(filter(None, (out.get("description", ""), f"({'; '.join(said)})")))
    return out


def _nested(key: str, value: Any) -> Any:
    if key in _NAMED:
        return {name: _schema(inner) for name, inner in value.items()}
    if key in _LISTED:
        return [_schema(inner) for inner in value]
    if key == "items" or (key == "additionalProperties" and not isinstance(value, bool)):
        return _schema(value)
    return value


def _one_of_all(schema: dict[str, Any]) -> dict[str, Any]:
    """``allOf`` of one schema, which generators write beside a reference, is that schema."""
    every = schema.get("allOf")
    if isinstance(every, list) and len(every) == 1 and isinstance(every[0], Mapping):
        del schema["allOf"]
        return {**every[0], **schema}
    return schema


def _reference(schema: dict[str, Any]) -> dict[str, Any]:
    """A reference: nothing may stand beside it but other ``$`` keywords."""
    target = str(schema["$ref"]).replace("#/definitions/", "#/$defs/")
    out: dict[str, Any] = {"$ref": target}
    if "$defs" in schema:
        out["$defs"] = _nested("$defs", schema["$defs"])
    beside = {key: schema[key] for key in ("description",) if schema.get(key)}
    if not beside:
        return out
    wrapped = {"anyOf": [{"$ref": target}], **beside}
    return {**wrapped, "$defs": out["$defs"]} if "$defs" in out else wrapped


def _enum(values: list[Any], out: dict[str, Any], said: list[str]) -> None:
    """Texts and numbers may be listed; other values are said."""
    texts = all(isinstance(value, str) for value in values)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if values and (texts or numbers):
        out["enum"] = values
        whole = all(isinstance(value, int) for value in values)
        out.setdefault("type", "string" if texts else "integer" if whole else "number")
        return
    if values and all(isinstance(value, bool) for value in values):
        out.setdefault("type", "boolean")
    said.append(f"one of {json.dumps(values, ensure_ascii=False)}")
