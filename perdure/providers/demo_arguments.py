"""The arguments that ``demo:tools`` gives a tool: words and numbers of a message, put where a JSON Schema has room.

A property is filled by the first of these that has something: a field of its name in a tool's result; what stands
behind its name in the message (``order 77``, ``amount: 12.50``); what has its form (a number, a date, an id with a
digit, text in quotes, a name with a capital letter); the whole message, for a text; the schema's default. What is left
is made up, and named in :attr:`ArgumentReader.invented`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .json_schemas import cut_levels, get_definition, repair_schema, resolve_references

_READ_CHARS = 4_000
"""Of a message: patterns of each property are looked for in all of it, on the worker's event loop."""
_RESULT_CHARS = 100_000
"""A longer result is not read as JSON."""
_MAX_LEVELS = 12
"""Levels of a schema that are filled; below them, objects stay empty."""
_MAX_ITEMS = 20
_NAME_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+")
_ID_WORDS = frozenset(("id", "number", "no", "nr", "code", "key", "ref", "reference", "sku"))
_LINK = r"(?: (?:id|number|no\.?|nr\.?|is|was|of|for|to|the|a)){0,4}[ :=#]{0,4}"
"""What may stand between a name and its value."""
_PATTERNS = {
    "number": r"(?<![\w.,-])-?\d{1,15}(?:,\d{3}){0,4}(?:\.\d{1,15})?(?![\w-])",
    "id": r"(?<![\w-])(?=[\w./#-]{0,60}\d)[A-Za-z0-9](?:[\w./#-]{0,60}\w)?",
    "quoted": r"(?<!\w)[\"“`'][^\"”`']{1,200}[\"”`'](?!\w)",
    "code": r"(?<![\w-])(?=[\w./#-]{0,60}\d)(?=[\w./#-]{0,60}[A-Za-z])[A-Za-z0-9](?:[\w./#-]{0,60}\w)?",
    "capital": r"(?<=[a-z,;:] )[A-ZÄÖÜ][a-zäöüß]+(?:[ -][A-ZÄÖÜ][a-zäöüß]+)*",
    "date-time": r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:Z|[+-]\d\d:\d\d)?",
    "date": r"(?<!\d)\d{4}-\d\d-\d\d(?!\d)",
    "time": r"(?<!\d)\d\d:\d\d(?::\d\d)?",
    "email": r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,4}",
    "uri": r"https?://[^ ]+",
    "uuid": r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
}
_MADE_UP = {
    "date-time": "2000-01-01T00:00:00Z",
    "date": "2000-01-01",
    "time": "12:00:00",
    "email": "ana@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-0000-0000-000000000000",
}
_NOTHING = object()


class ArgumentReader:
    """Fills schemas from one message. Each of its values is used once."""

    def __init__(self, text: str, results: Sequence[str] = ()) -> None:
        """``results`` of tools may be JSON objects: their fields go before the message."""
        self.text = " ".join(text[:_READ_CHARS].split())
        self.invented: list[str] = []
        """Names of the properties whose value is in no message."""
        self._used: list[tuple[int, int]] = []
        self._fields: dict[str, Any] = {}
        for result in results:
            try:
                value = json.loads(result, parse_constant=_refuse_constant) if len(result) <= _RESULT_CHARS else None
            except (ValueError, RecursionError):
                continue
            self._fields |= value if isinstance(value, dict) else {}
        self._root: Mapping[str, Any] = {}
        self._answer: str | None = None

    def fill(self, schema: Mapping[str, Any], *, answer: str | None = None) -> dict[str, Any]:
        """The arguments for the schema of a tool. ``answer``: what a text is, if the message does not name it."""
        self._root, self._answer = resolve_references(repair_schema(cut_levels(schema, 2 * _MAX_LEVELS))), answer
        return self._fill_object(self._root, 0)

    def _fill_object(self, schema: Mapping[str, Any], level: int) -> dict[str, Any]:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or level > _MAX_LEVELS:
            return {}
        required = schema.get("required")
        required = frozenset(required) if isinstance(required, list) else frozenset[str]()
        schemas = {name: self._resolve(each) for name, each in properties.items()}
        # Names first: what stands behind one is not for another property, whatever their order.
        found = {name: self._find_named(name, each) for name, each in schemas.items()}
        for name, each in schemas.items():
            if found[name] is _NOTHING:
                found[name] = self._find(name, each, level, is_required=name in required)
        return {name: value for name, value in found.items() if value is not _NOTHING}

    def _resolve(self, schema: Any) -> Mapping[str, Any]:
        """Follow references, and take the first alternative that is not null."""
        for _ in range(_MAX_LEVELS):
            if not isinstance(schema, Mapping):
                return {}
            rest = {key: value for key, value in schema.items() if key not in ("$ref", "allOf", "anyOf", "oneOf")}
            if isinstance(reference := schema.get("$ref"), str):
                try:
                    schema = {**(get_definition(self._root, reference) or {}), **rest}
                except (ValueError, TypeError, AttributeError):  # a reference of another form
                    return rest
                continue
            listed = [schema[key] for key in ("allOf", "anyOf", "oneOf") if isinstance(schema.get(key), list)]
            options: list[Mapping[str, Any]] = [
                option
                for option in (listed[0] if listed else ())
                if isinstance(option, Mapping) and option.get("type") != "null"
            ]
            if not options:
                return schema
            schema = {**options[0], **rest}
        return {}

    def _find_named(self, name: str, schema: Mapping[str, Any]) -> Any:
        """A field of a result, or what stands behind the property's name in the message."""
        kind = _get_kind(schema)
        if name in self._fields and _fits(self._fields[name], kind, schema):
            return self._fields[name]
        if "enum" in schema or "const" in schema:
            return self._find_listed(schema)
        words = [word.lower() for word in _NAME_WORD.findall(name)]
        words = [word for word in words if word not in _ID_WORDS] or words
        if kind in ("integer", "number", "string") and words and schema.get("format") not in _PATTERNS:
            form = "number" if kind != "string" else "id"
            if (text := self._take(form, after=words)) is not None:
                return _fit_number(text, schema) if kind != "string" else text
            if kind == "string" and (text := self._take("quoted", after=words)) is not None:
                return text
        label = "[ _-]?".join(map(re.escape, words))
        if kind == "boolean" and words and (match := _compile_word(label).search(self.text)):
            return not match["negation"]
        return _NOTHING

    def _find_listed(self, schema: Mapping[str, Any]) -> Any:
        if "const" in schema:
            return schema["const"]
        values = schema["enum"] if isinstance(schema["enum"], list) else []
        return next((v for v in values if _compile_word(re.escape(str(v))).search(self.text)), _NOTHING)

    def _find(self, name: str, schema: Mapping[str, Any], level: int, *, is_required: bool) -> Any:
        kind = _get_kind(schema)
        value = _NOTHING
        if kind in ("integer", "number"):
            text = self._take("number")
            value = _NOTHING if text is None else _fit_number(text, schema)
        elif kind == "string" and "enum" not in schema:
            value = self._find_text(name, schema, is_required=is_required)
        elif kind == "array":
            value = self._find_items(name, schema, level, is_required=is_required)
        elif kind == "object" and is_required:
            return self._fill_object(schema, level + 1)
        if value is not _NOTHING or not is_required:
            return value
        if "default" in schema:
            return schema["default"]
        self.invented.append(name)
        return _make_up(kind, schema)

    def _find_text(self, name: str, schema: Mapping[str, Any], *, is_required: bool) -> Any:
        words = {word.lower() for word in _NAME_WORD.findall(name)}
        form = schema.get("format")
        if form in _PATTERNS:
            forms = [form]
        elif words & _ID_WORDS:
            forms = ["quoted", "code", "id"]
        else:
            forms = ["quoted", "capital"] if self._answer is None and is_required else []
        text = next((text for form in forms if (text := self._take(form)) is not None), None)
        if text is None and is_required and form not in _PATTERNS and not words & _ID_WORDS:
            text = self.text if self._answer is None else self._answer
        return _NOTHING if not text else _fit_text(text, schema)

    def _find_items(self, name: str, schema: Mapping[str, Any], level: int, *, is_required: bool) -> Any:
        items = self._resolve(schema.get("items", {}))
        kind, values = _get_kind(items), list[Any]()
        least = schema.get("minItems", 1 if kind == "object" and level == 0 else 0)
        most = min(schema.get("maxItems", _MAX_ITEMS), _MAX_ITEMS)
        form = {"string": items.get("format", "quoted"), "integer": "number", "number": "number"}.get(kind, "")
        while form in _PATTERNS and len(values) < most and (text := self._take(form)) is not None:
            values.append(_fit_text(text, items) if kind == "string" else _fit_number(text, items))
        while is_required and len(values) < min(least, _MAX_ITEMS) and level < _MAX_LEVELS:
            values.append(self._find(name, items, level + 1, is_required=True))
        return values if values or is_required else _NOTHING

    def _take(self, form: str, *, after: Sequence[str] = ()) -> str | None:
        """The first text of that form that was not taken yet; one of the words ``after`` stands before it."""
        for match in _compile_value(form, after).finditer(self.text):
            start, end = match.span("value")
            if all(end <= used_start or start >= used_end for used_start, used_end in self._used):
                self._used.append((start, end))
                text = match["value"]
                return text[1:-1] if form == "quoted" else text.rstrip("./#-")
        return None


def _compile_value(form: str, after: Sequence[str]) -> re.Pattern[str]:
    label = rf"(?i:\b(?:{'|'.join(map(re.escape, after))})s?{_LINK})" if after else ""
    return re.compile(f"{label}(?P<value>{_PATTERNS[form]})")


def _compile_word(label: str) -> re.Pattern[str]:
    return re.compile(rf"(?P<negation>\b(?:not|no|without) )?\b{label}\b", re.IGNORECASE)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _get_kind(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), "string")
    if isinstance(kind, str):
        return kind
    return "object" if "properties" in schema else "string"


def _fits(value: Any, kind: str, schema: Mapping[str, Any]) -> bool:
    types: dict[str, type | tuple[type, ...]] = {
        "string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict,
    }  # fmt: skip
    is_right = isinstance(value, types.get(kind, ())) and (kind == "boolean" or not isinstance(value, bool))
    return is_right and ("enum" not in schema or value in schema["enum"])


def _fit_number(text: str, schema: Mapping[str, Any]) -> int | float:
    number = float(text.replace(",", ""))
    return _bound(number, schema)


def _bound(number: float, schema: Mapping[str, Any]) -> int | float:
    is_integer = _get_kind(schema) == "integer"
    step = schema.get("multipleOf") or 1
    least, most = schema.get("minimum"), schema.get("maximum")
    if isinstance(above := schema.get("exclusiveMinimum"), int | float):
        least = above + step if is_integer else above + 0.01
    if isinstance(below := schema.get("exclusiveMaximum"), int | float):
        most = below - step if is_integer else below - 0.01
    number = number if not isinstance(least, int | float) else max(number, least)
    number = number if not isinstance(most, int | float) else min(number, most)
    if not math.isfinite(number):
        return 1
    return int(number) if is_integer or float(number).is_integer() else number


def _fit_text(text: str, schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    return (text if not isinstance(most, int) else text[:most]).ljust(least if isinstance(least, int) else 0, ".")


def _make_up(kind: str, schema: Mapping[str, Any]) -> Any:
    """A small value of the schema's kind."""
    if isinstance(values := schema.get("enum"), list) and values:
        return values[0]
    match kind:
        case "integer" | "number":
            return _bound(1.0, schema)
        case "boolean":
            return False
        case "array":
            return []
        case "null":
            return None
        case "object":
            return {}
    return _MADE_UP.get(schema.get("format", ""), "") or _fit_text("unknown", schema)
