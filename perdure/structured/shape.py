"""What a JSON Schema says of one place of a value: which kinds of JSON may stand there, and what is below."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

KINDS = frozenset(["string", "number", "boolean", "null", "object", "array"])
_DEPTH = 20
"""References and alternatives that are followed from one place."""


def kind_of(value: Any) -> str:
    """The kind of a plain JSON value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case int() | float():
            return "number"
        case dict():
            return "object"
        case _:
            return "array"


class Shape:
    """One place. ``branches`` are the schemas that it may have; without any, everything may stand there."""

    def __init__(self, branches: Iterable[Mapping[str, Any]], defs: Mapping[str, Any]) -> None:
        self._defs = defs
        self.branches = tuple(inner for branch in branches for inner in _alternatives(branch, defs))
        kinds = [_kinds(branch) for branch in self.branches]
        self.kinds: frozenset[str] = frozenset().union(*kinds) if kinds else KINDS
        """Which kinds of JSON may stand here."""

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> Shape:
        """The root of ``schema``."""
        return cls([schema], schema.get("$defs", {}))

    def child(self, name: str) -> Shape:
        """What may stand under ``name`` in an object."""
        named = [branch["properties"][name] for branch in self.branches if name in branch.get("properties", {})]
        if not named:
            others = [branch.get("additionalProperties") for branch in self.branches]
            named = [schema for schema in others if isinstance(schema, Mapping)]
        return Shape(map(_schema, named), self._defs)

    def item(self, index: int) -> Shape:
        """What may stand at ``index`` of an array."""
        schemas = []
        for branch in self.branches:
            first = branch.get("prefixItems", ())
            if index < len(first):
                schemas.append(first[index])
            elif "items" in branch:
                schemas.append(branch["items"])
        return Shape(map(_schema, schemas), self._defs)

    def default(self) -> str | None:
        """The kind of a value of which nothing is said; None where it cannot be told."""
        kinds = self.kinds - {"null"}
        if len(kinds) == 1:
            return next(iter(kinds))
        return "string" if "string" in kinds else None


def _schema(schema: Any) -> Mapping[str, Any]:
    return schema if isinstance(schema, Mapping) else {}


def _alternatives(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int = 0) -> Iterator[Mapping[str, Any]]:
    if depth > _DEPTH:
        yield {}
    elif isinstance(reference := schema.get("$ref"), str):
        yield from _alternatives(_schema(defs.get(reference.rpartition("/")[2])), defs, depth + 1)
    elif any(isinstance(schema.get(key), list) for key in ("anyOf", "oneOf", "allOf")):
        for key in ("anyOf", "oneOf", "allOf"):
            for one in schema.get(key, ()):
                yield from _alternatives(_schema(one), defs, depth + 1)
    else:
        yield schema


def _kinds(schema: Mapping[str, Any]) -> frozenset[str]:
    if "const" in schema:
        return frozenset([kind_of(schema["const"])])
    if isinstance(schema.get("enum"), list):
        return frozenset(map(kind_of, schema["enum"]))
    said = schema.get("type", list(KINDS))
    return frozenset("number" if one == "integer" else one for one in ([said] if isinstance(said, str) else said))


def shown(schema: Mapping[str, Any]) -> str:
    """A word or two for what ``schema``, one branch, takes."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return " or ".join(json.dumps(value, ensure_ascii=False) for value in values)
    said = schema.get("type", "anything")
    return " or ".join([said] if isinstance(said, str) else said)
