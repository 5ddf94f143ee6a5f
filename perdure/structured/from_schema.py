"""A type from a JSON Schema, for agents that are data: what models can be held to, and nothing that is only checked.

An object becomes a ``TypedDict``: its values are plain dictionaries with what the model gave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic_core import SchemaError
from typing_extensions import TypedDict

from ..errors import DefinitionError

_PLAIN = {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}
_BOUNDS = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
    "minLength": "min_length",
    "maxLength": "max_length",
    "pattern": "pattern",
    "minItems": "min_length",
    "maxItems": "max_length",
}
_OF = {
    "string": {"minLength", "maxLength", "pattern"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
}
_ANY = {"type", "description", "title", "examples", "$schema"}
DEPTH = 20
_typed_dict: Any = TypedDict  # called with names that are known at run time alone


def type_from_schema(schema: Any, where: str) -> Any:
    """A type that pydantic can take, of the values that fit ``schema``. ``where`` names it in errors.

    Raises ``DefinitionError`` that names the place and the keyword.
    """
    return _type(schema, where, 0)


def _type(schema: Any, where: str, depth: int) -> Any:
    if not isinstance(schema, Mapping):
        raise _wrong(where, f"a JSON Schema is an object, not {schema!r:.60}", 'For instance {"type": "string"}.')
    if depth > DEPTH:
        raise _wrong(where, f"it is more than {DEPTH} levels deep", "Make it flatter: models fill in flat ones better.")
    said = {"description": schema["description"]} if isinstance(schema.get("description"), str) else {}
    if "enum" in schema or "const" in schema:
        return _described(_one_of(schema, where), said)
    kinds = schema.get("type")
    if isinstance(kinds, list) and kinds:
        found: Any = None
        for number, kind in enumerate(kinds):
            one = _type({**_only(schema, kind), "type": kind}, where, depth)
            found = one if number == 0 else found | one
        return _described(found, said)
    if kinds is None and (strange := sorted(schema.keys() - _ANY - set().union(*_OF.values()))):
        raise _wrong(where, f"{strange[0]!r} is not supported", "Say the type of each value, and what it consists of.")
    if kinds not in (*_PLAIN, "array", "object"):
        raise _wrong(
            f"{where}.type",
            f"{kinds!r:.60} is none of {', '.join([*_PLAIN, 'array', 'object'])}, or a list of them",
            "Say the type of each value.",
        )
    if unknown := sorted(schema.keys() - _ANY - _OF.get(kinds, set())):
        known = ", ".join(sorted(_ANY | _OF.get(kinds, set())))
        raise _wrong(where, f"{unknown[0]!r} of {kinds} is not supported", f"There is: {known}; and enum, const.")
    bounds = {_BOUNDS[name]: schema[name] for name in schema if name in _BOUNDS}
    _check_bounds(where, list if kinds == "array" else _PLAIN.get(kinds), bounds)
    if kinds == "array":
        return _described(list[_type(schema.get("items", {}), f"{where}.items", depth + 1)], said | bounds)  # type: ignore[misc]  # a type made at run time
    return _described(_object(schema, where, depth) if kinds == "object" else _PLAIN[kinds], said | bounds)


def _check_bounds(where: str, kind: Any, bounds: Mapping[str, Any]) -> None:
    """Raise ``DefinitionError`` for a pattern that is none, and a bound that is no number."""
    if bounds:
        try:
            TypeAdapter(Annotated[kind, Field(**bounds)])
        except (SchemaError, TypeError) as error:
            why = str(error).strip().rpartition("\n")[2].strip()
            raise _wrong(where, why, "Bounds are numbers, and a pattern is a regular expression.") from None


def _object(schema: Mapping[str, Any], where: str, depth: int) -> Any:
    given, required = schema.get("properties"), schema.get("required", ())
    if not isinstance(given, Mapping) or not given:
        raise _wrong(where, "an object has properties", 'For instance {"properties": {"answer": {"type": "string"}}}.')
    if schema.get("additionalProperties", False) is not False:
        raise _wrong(f"{where}.additionalProperties", "it can be false alone", "Name the properties that there may be.")
    if not isinstance(required, Sequence) or isinstance(required, str) or not all(one in given for one in required):
        raise _wrong(f"{where}.required", f"{required!r:.60} is no list of its properties", "List their names.")
    fields = {name: _type(one, f"{where}.properties.{name}", depth + 1) for name, one in given.items()}
    kinds = {name: kind if name in required else NotRequired[kind] for name, kind in fields.items()}
    title = schema.get("title")
    made = _typed_dict(title if isinstance(title, str) and title.isidentifier() else "Object", kinds)
    made.__pydantic_config__ = ConfigDict(extra="forbid")
    return made


def _one_of(schema: Mapping[str, Any], where: str) -> Any:
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    plain = isinstance(values, list) and all(isinstance(one, str | int | bool | None) for one in values)
    if not plain or not values:
        raise _wrong(f"{where}.enum", "it lists texts, whole numbers, true, false or null", 'For instance ["a", "b"].')
    return Literal[tuple(values)]


def _only(schema: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """What ``schema`` says of one of its types."""
    others = set().union(*_OF.values()) - _OF.get(kind, set()) if isinstance(kind, str) else set()
    return {name: value for name, value in schema.items() if name not in others | {"description", "title"}}


def _described(kind: Any, facts: Mapping[str, Any]) -> Any:
    return Annotated[kind, Field(**facts)] if facts else kind


def _wrong(where: str, why: str, hint: str) -> DefinitionError:
    return DefinitionError(f"{where}: {why}", hint=hint)
