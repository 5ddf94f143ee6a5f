"""Validates an answer against a form: a subset of JSON Schema that is quick to check.

The workflow calls this for each answer, so the result must stay the same for the same form and value: a change here is
a change of the workflow (``workflow.patched``). Unknown keywords, patterns and formats are ignored; the code that reads
the answer checks them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from .tool_calls import FORM_BYTES

MAX_CHECK_STEPS = 10_000
"""Most steps of one check; the rest of the value is not checked."""
MAX_FORM_DEPTH = 100
"""Most nested forms; deeper ones are not checked."""
_SHOWN_VALUE_CHARS = 80
_MAX_LISTED_OPTIONS = 20
"""Most options or fields that a message lists."""
_TYPE_CHECKS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: _is_json_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": lambda value: _is_json_number(value),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_BOUND_CHECKS: tuple[tuple[str, Callable[[Any, Any], bool], str], ...] = (
    ("minimum", lambda value, bound: value >= bound, "is less than"),
    ("maximum", lambda value, bound: value <= bound, "is more than"),
    ("exclusiveMinimum", lambda value, bound: value > bound, "is not more than"),
    ("exclusiveMaximum", lambda value, bound: value < bound, "is not less than"),
)
_SIZE_KEYWORDS = {str: ("minLength", "maxLength", "characters"), list: ("minItems", "maxItems", "items")}


def normalize_form(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``schema`` as plain JSON. Raises ``ValueError`` if it is not JSON, or too large."""
    try:
        text = json.dumps(schema, allow_nan=False)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"the schema must be plain JSON: {error}") from None
    if len(text) > FORM_BYTES:
        raise ValueError(f"the schema has {len(text):,} bytes as JSON and may have {FORM_BYTES:,}")
    plain: dict[str, Any] = json.loads(text)
    return plain


def find_form_mismatch(form: Any, value: Any) -> str | None:
    """Return why ``value``, plain JSON, does not fit; None if it fits."""
    return next(_FormCheck(form).iter_mismatches(form, value, ""), None)


class _FormCheck:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = MAX_CHECK_STEPS
        self._depth = 0
        # By identity of parts of form and value: each is encoded once, however often it is compared.
        self._texts: dict[int, str] = {}
        self._names: dict[int, Any] = {}
        self._options: dict[int, frozenset[Any]] = {}

    def iter_mismatches(self, form: Any, value: Any, at: str) -> Generator[str, None, None]:
        """Iterate over the reasons why ``value``, at path ``at``, does not fit."""
        self._left -= 1
        if self._left < 0 or self._depth >= MAX_FORM_DEPTH:
            return
        self._depth += 1
        try:
            yield from self._iter_schema_mismatches(form, value, at)
        finally:
            self._depth -= 1

    def _iter_schema_mismatches(self, form: Any, value: Any, at: str) -> Iterator[str]:
        if form is False:
            yield f"{at or 'the answer'}: nothing is expected here"
        if not isinstance(form, Mapping):
            return
        if isinstance(ref := form.get("$ref"), str):
            yield from self.iter_mismatches(self._resolve_ref(ref), value, at)
        yield from self._iter_value_mismatches(form, value, at)
        yield from self._iter_item_mismatches(form, value, at)
        for part in _as_sequence(form.get("allOf")):
            yield from self.iter_mismatches(part, value, at)
        for name in ("anyOf", "oneOf"):
            forms = _as_sequence(form.get(name))
            mismatches = [self._find_first_mismatch(alternative, value, at) for alternative in forms]
            if len(forms) == 1 and mismatches[0] is not None:
                yield mismatches[0]
            elif forms and None not in mismatches:
                yield f"{self._locate_value(at, value)} fits none of the {len(forms)} ways"

    def _find_first_mismatch(self, form: Any, value: Any, at: str) -> str | None:
        """Return the first mismatch, without a search for others."""
        with closing(self.iter_mismatches(form, value, at)) as mismatches:
            return next(mismatches, None)

    def _iter_item_mismatches(self, form: Mapping[str, Any], value: Any, at: str) -> Iterator[str]:
        if isinstance(value, list):
            prefix_forms = _as_sequence(form.get("prefixItems"))
            for index, item in enumerate(value):
                item_form = prefix_forms[index] if index < len(prefix_forms) else form.get("items")
                yield from self.iter_mismatches(item_form, item, f"{at}[{index}]")
        if not isinstance(value, dict):
            return
        fields = form.get("properties")
        fields = fields if isinstance(fields, Mapping) else {}
        for name in _as_sequence(form.get("required")):
            if isinstance(name, str) and name not in value:
                yield f"{_join_field_path(at, name)}: it is missing"
        for name, item in value.items():
            if name in fields:
                yield from self.iter_mismatches(fields[name], item, _join_field_path(at, name))
            elif form.get("additionalProperties") is False and "patternProperties" not in form:
                known = _format_options(list(map(str, fields))) or "none"
                yield f"{_join_field_path(at, name)}: there is no such field; there is: {known}"
            else:
                yield from self.iter_mismatches(form.get("additionalProperties"), item, _join_field_path(at, name))

    def _resolve_ref(self, ref: str) -> Any:
        """Resolve ``#/$defs/Name``; references to other documents resolve to None."""
        form = self._root
        for step in ref.removeprefix("#").strip("/").split("/") if ref != "#" else ():
            form = form.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(form, Mapping) else None
        return form

    def _iter_value_mismatches(self, form: Mapping[str, Any], value: Any, at: str) -> Iterator[str]:
        """Check the value itself, without its items and fields."""
        kinds = form.get("type")
        known = [kind for kind in ([kinds] if isinstance(kinds, str) else _as_sequence(kinds)) if _is_known_type(kind)]
        if known and not any(_TYPE_CHECKS[kind](value) for kind in known):
            yield f"{self._locate_value(at, value)} is no {' or '.join(known)}"
        if "const" in form and self._get_json_key(form["const"]) != self._get_json_key(value):
            yield f"{self._locate_value(at, value)} is not {self._format_value(form['const'])}"
        options = form.get("enum")
        if isinstance(options, list) and self._get_json_key(value) not in self._get_option_keys(options):
            yield f"{self._locate_value(at, value)} is none of {_format_options(options, self._format_value)}"
        if _is_json_number(value):
            for name, fits, why in _BOUND_CHECKS:
                if _is_json_number(bound := form.get(name)) and not fits(value, bound):
                    yield f"{self._locate_value(at, value)} {why} {bound}"
        for kind, (least, most, unit) in _SIZE_KEYWORDS.items():
            if isinstance(value, kind):
                if _is_json_number(bound := form.get(least)) and len(value) < bound:
                    yield f"{self._locate_value(at, value)} has fewer than {bound} {unit}"
                if _is_json_number(bound := form.get(most)) and len(value) > bound:
                    yield f"{self._locate_value(at, value)} has more than {bound} {unit}"

    def _get_option_keys(self, options: list[Any]) -> frozenset[Any]:
        if id(options) not in self._options:
            self._options[id(options)] = frozenset(map(self._get_json_key, options))
        return self._options[id(options)]

    def _get_json_key(self, value: Any) -> Any:
        """Return a key that is the same for values that are equal as JSON: true is not 1, and 1.0 is."""
        if _is_json_number(value):
            return value
        if id(value) not in self._names:
            self._names[id(value)] = json.dumps(value, sort_keys=True)
        return self._names[id(value)]

    def _locate_value(self, at: str, value: Any) -> str:
        return f"{at}: {self._format_value(value)}" if at else self._format_value(value)

    def _format_value(self, value: Any) -> str:
        if id(value) not in self._texts:
            text = json.dumps(value, ensure_ascii=False)
            self._texts[id(value)] = text if len(text) <= _SHOWN_VALUE_CHARS else text[:_SHOWN_VALUE_CHARS] + "…"
        return self._texts[id(value)]


def _is_known_type(kind: Any) -> bool:
    return isinstance(kind, str) and kind in _TYPE_CHECKS


def _is_json_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _as_sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _join_field_path(at: str, name: Any) -> str:
    return f"{at}.{name}" if at else str(name)


def _format_options(options: Sequence[Any], format: Callable[[Any], str] = str) -> str:
    more = len(options) - _MAX_LISTED_OPTIONS
    return ", ".join(map(format, options[:_MAX_LISTED_OPTIONS])) + (f" and {more} more" if more > 0 else "")
