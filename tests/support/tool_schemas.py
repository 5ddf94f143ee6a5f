"""Schemas of tools as servers and programs of others write them, which at least one vendor refuses."""

from __future__ import annotations

from typing import Any

TEXT, NUMBER = {"type": "string"}, {"type": "number"}
DEEP: dict[str, Any] = {"type": "string"}
for _ in range(60):
    DEEP = {"type": "array", "items": DEEP}
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}, "required": ["next"]}

ODD: dict[str, dict[str, Any]] = {
    "no properties": {"type": "object"},
    "nothing": {},
    "only a root combinator": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "one of two": {
        "type": "object",
        "properties": {"a": TEXT, "b": TEXT},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "all of": {
        "allOf": [{"properties": {"a": TEXT}, "required": ["a"]}, {"$ref": "#/$defs/B"}],
        "$defs": {"B": {"properties": {"b": NUMBER}}},
    },
    "a tagged union": {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": "a"}, "x": NUMBER}, "required": ["kind", "x"]},
            {"type": "object", "properties": {"kind": {"const": "b"}, "y": TEXT}, "required": ["kind"]},
        ]
    },
    "a pointer into a combinator": {
        "anyOf": [{"properties": {"a": TEXT}}, {"properties": {"b": {"$ref": "#/anyOf/0/properties/a"}}}]
    },
    "enum at the root": {"type": "object", "enum": [{"a": 1}, {"a": 2}]},
    "const at the root": {"const": {"a": 1}},
    "not at the root": {"type": "object", "properties": {"a": TEXT}, "not": {"required": ["a"]}},
    "a root reference": {
        "$ref": "#/definitions/Args",
        "definitions": {"Args": {"type": "object", "properties": {"a": TEXT}, "additionalProperties": False}},
    },
    "a root that refers to itself": {"$ref": "#", "properties": {"a": {"$ref": "#"}}},
    "a loop of references": {
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}},
    },
    "a reference to elsewhere": {
        "properties": {"a": {"$ref": "https://example.com/a.json"}, "b": {"$ref": "#/$defs/none"}}
    },
    "an anchor": {"properties": {"a": {"$ref": "#it"}}, "$defs": {"It": {"$anchor": "it", "type": "string"}}},
    "a reference by the root's id": {
        "$id": "https://e.com/s",
        "properties": {"a": {"$ref": "https://e.com/s#/$defs/A"}},
        "$defs": {"A": TEXT},
    },
    "prefixItems": {
        "properties": {"at": {"type": "array", "prefixItems": [NUMBER, TEXT], "minItems": 2, "maxItems": 2}}
    },
    "an open tuple": {"properties": {"at": {"type": "array", "prefixItems": [NUMBER]}}},
    "a closed tuple": {"properties": {"at": {"type": "array", "prefixItems": [NUMBER], "items": False}}},
    "a tuple of draft 7": {"properties": {"at": {"type": "array", "items": [NUMBER, TEXT], "additionalItems": False}}},
    "an array of anything": {
        "properties": {
            "at": {"type": "array"},
            "or": {"type": ["array", "null"]},
            "true": {"type": "array", "items": True},
        }
    },
    "objects inside": {
        "properties": {"o": {"type": "object"}, "m": {"type": "object", "additionalProperties": NUMBER}}
    },
    "booleans as schemas": {"properties": {"a": True, "b": False}, "additionalProperties": True},
    "nulls": {"properties": {"a": None, "b": {"type": None, "description": None, "enum": None}}, "required": None},
    "lists of PHP": {"type": "object", "properties": [], "$defs": []},
    "keys that are refused": {
        "properties": {"filter[id]": TEXT, "$top": NUMBER, "größe": TEXT, "x" * 80: TEXT, "9": TEXT},
        "required": ["filter[id]"],
    },
    "keys in a combinator": {
        "properties": {"a b": TEXT},
        "anyOf": [{"required": ["a b"]}, {"properties": {"c d": TEXT}}],
        "dependentRequired": {"a b": ["c d"]},
    },
    "bounds of draft 4": {"properties": {"a": {"type": "integer", "minimum": 1, "exclusiveMinimum": True}}},
    "required of draft 3": {
        "properties": {"a": {"type": "string", "required": True}, "b": {"type": "string", "required": False}}
    },
    "types by other names": {
        "properties": {"a": {"type": "STRING"}, "b": {"type": "int"}, "c": {"type": "any"}, "d": {"type": "thing"}}
    },
    "a keyword among the properties": {"properties": {"a": TEXT, "type": "object"}},
    "counts as text": {"properties": {"a": {"type": "string", "maxLength": "12", "minLength": -1, "pattern": 7}}},
    "examples that are one": {"properties": {"a": {"type": "string", "examples": "x", "enum": []}}},
    "required twice, and undefined": {"properties": {"a": TEXT}, "required": ["a", "a", "z"]},
    "formats": {"properties": {"a": {"type": "string", "format": "uri"}, "b": {"type": "string", "format": "date"}}},
    "lookaround": {"properties": {"a": {"type": "string", "pattern": "^(?!x)y"}}},
    "an empty text in an enum": {"properties": {"a": {"enum": ["", "x"]}, "b": {"enum": ["a", 1, None]}}},
    "too deep": {"properties": {"a": DEEP}},
    "a required cycle": {"properties": {"a": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": NODE}},
    "a cycle of items": {
        "properties": {"j": {"$ref": "#/$defs/J"}},
        "$defs": {"J": {"anyOf": [TEXT, {"type": "array", "items": {"$ref": "#/$defs/J"}}]}},
    },
    "a root in itself": {"properties": {"child": {"$ref": "#"}}, "required": ["child"]},
    "if and then": {"properties": {"a": TEXT}, "if": {"required": ["a"]}, "then": {"required": ["b"]}},
}
