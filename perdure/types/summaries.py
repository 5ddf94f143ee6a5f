"""The summary of a tool call: one line that says what it does, as a person reads it before a decision.

A tool may have a template, ``summary="Pay {invoice_id}: {amount}"``; other calls are named by their tool and its first
arguments. Values come from models: each is shortened, on one line, and quoted unless it is a single word, so that it
cannot pass for the author's words or for another argument. A template has names alone: it runs no code.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from string import Formatter
from typing import Any
from unicodedata import bidirectional

from .visible_text import show_controls

TEMPLATE_CHARS = 200
"""Most characters of a template."""
SUMMARY_CHARS = 240
"""Most characters of a summary."""
_VALUE_CHARS = 32
"""Most characters of a value, before its escapes."""
_TEMPLATE_VALUE_CHARS = 60
_NAMED_ARGUMENTS = 3
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_.@:/+#-]+")
_MISSING = object()
_HINT = 'For instance summary="Pay {invoice_id}: {amount}".'


ISOLATE, END_ISOLATE = "\u2068", "\u2069"
"""Stand around a value with letters that are written from right to left, so that it reorders nothing around it. No
value has them of its own: they would be shown by their numbers."""


# ---
# Templates.


def find_template_flaw(template: Any, parameters: Mapping[str, Any]) -> tuple[str, str] | None:
    """Find why ``template`` is none for a tool with these parameters, a JSON Schema: a reason and the way out."""
    shown = f"summary={template!r:.100}"
    if not isinstance(template, str) or not template.strip():
        return f"{shown} is not a text", _HINT
    if len(template) > TEMPLATE_CHARS:
        return f"{shown} has more than {TEMPLATE_CHARS} characters", "Name the arguments that tell calls apart."
    if not template.isprintable() or show_controls(template) != template:
        return f"{shown} has characters that one line of text does not have", _HINT
    try:
        fields = list(Formatter().parse(template))
    except ValueError as error:
        return f"{shown}: {error}", "Write {{ and }} for braces that are text."
    for _, name, spec, conversion in fields:
        if name is None:
            continue
        if spec or conversion:
            reason = f"{shown}: {{{name}}} has a format, and arguments are formatted by perdure"
            return reason, f"Write {{{name}}}, without ':' and '!'."
        if (flaw := _find_name_flaw(name, parameters)) is not None:
            return f"{shown}: {flaw}", f"Its arguments are {', '.join(_list_properties(parameters)) or 'none'}."
    return None


def _find_name_flaw(name: str, parameters: Mapping[str, Any]) -> str | None:
    schema: Any = parameters
    steps = name.split(".")
    if not all(step and "[" not in step and "]" not in step for step in steps):
        return f"{{{name}}} is not the name of an argument"
    for depth, step in enumerate(steps):
        properties = _get_properties(parameters, schema)
        if step not in properties:
            owner = "the tool" if depth == 0 else f"argument {'.'.join(steps[:depth])!r}"
            return f"{owner} has no {'argument' if depth == 0 else 'field'} {step!r}"
        schema = properties[step]
    return None


def _list_properties(parameters: Mapping[str, Any]) -> list[str]:
    return [f"{{{name}}}" for name in _get_properties(parameters, parameters)][:20]


def _get_properties(root: Mapping[str, Any], schema: Any) -> Mapping[str, Any]:
    """Return the properties of an object's schema, also behind ``$ref`` and of one that may be null."""
    for each in _iterate_choices(root, schema):
        if isinstance(properties := each.get("properties"), Mapping):
            return properties
    return {}


def _iterate_choices(root: Mapping[str, Any], schema: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    if not isinstance(schema, Mapping) or depth > 10:
        return
    yield schema
    found: Any = root
    ref = schema.get("$ref")
    if isinstance(ref, str) and ref.startswith("#/"):
        for step in ref[2:].split("/"):
            found = found.get(step) if isinstance(found, Mapping) else None
        yield from _iterate_choices(root, found, depth + 1)
    for word in ("anyOf", "oneOf", "allOf"):
        for choice in schema.get(word) or () if isinstance(schema.get(word), Sequence) else ():
            yield from _iterate_choices(root, choice, depth + 1)


# ---
# Summaries.


def render_summary(template: str, arguments: Mapping[str, Any]) -> str:
    """Return ``template``, which has been checked, with the arguments' values."""
    parts = []
    for text, name, _, _ in Formatter().parse(template):
        parts.append(text)
        if name is not None:
            value = _get_value(arguments, name)
            parts.append("none" if value in (_MISSING, None) else _format_value(value, _TEMPLATE_VALUE_CHARS))
    return _cut("".join(parts))


def summarize_call(tool: str, arguments: Mapping[str, Any] | None) -> str:
    """Name a call of a tool without a template: ``refund: order id 556, amount 300.00``.

    Numbers are named before texts, since an amount must not be pushed out by a long text.
    """
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    plain = {name: value for name, value in given.items() if isinstance(value, str | bool | int | float)}
    ranked = sorted(plain, key=lambda name: (isinstance(plain[name], str), _is_long(plain[name])))
    chosen = set(ranked[:_NAMED_ARGUMENTS])
    parts = [
        f"{_shorten_line(name.replace('_', ' '), _VALUE_CHARS)} {_format_value(value, _VALUE_CHARS)}"
        for name, value in plain.items()
        if name in chosen
    ]
    if parts and (left := len(given) - len(parts)):
        parts.append(f"and {left} more")
    title = _shorten_line(tool.replace("_", " "), _VALUE_CHARS)
    return _cut(f"{title}: {', '.join(parts)}" if parts else title)


def is_own_summary(summary: str, tool: str) -> bool:
    """Whether a summary says more than the tool's name and arguments: those of :func:`summarize_call` do not."""
    title = _shorten_line(tool.replace("_", " "), _VALUE_CHARS)
    return bool(summary) and summary != title and not summary.startswith(f"{title}: ")


def summarize_question(tool: str, question: str) -> str:
    """Name the question of a tool: its text, on one line."""
    return _cut(f"{_shorten_line(tool.replace('_', ' '), _VALUE_CHARS)}: {_shorten_line(question, SUMMARY_CHARS)}")


def find_amount(
    template: str | None, parameters: Mapping[str, Any], arguments: Mapping[str, Any] | None
) -> float | None:
    """Return the argument by which an inbox sorts calls: the first number that the template names, else the first
    ``number`` of the tool's schema, else its first ``integer``; None if there is none."""
    if not arguments:
        return None
    names = [name for _, name, _, _ in Formatter().parse(template or "") if name]
    properties = _get_properties(parameters, parameters)
    for kind in ("number", "integer"):
        names += [name for name in properties if kind in _list_types(parameters, properties[name])]
    for name in names:
        value = _get_value(arguments, name)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
            return float(value)
    return None


def _list_types(root: Mapping[str, Any], schema: Any) -> set[str]:
    types: set[str] = set()
    for each in _iterate_choices(root, schema):
        kind = each.get("type")
        types |= {kind} if isinstance(kind, str) else {word for word in kind or () if isinstance(word, str)}
    return types


def _get_value(arguments: Mapping[str, Any], name: str) -> Any:
    value: Any = arguments
    for step in name.split("."):
        value = value.get(step, _MISSING) if isinstance(value, Mapping) else _MISSING
    return value


def _format_value(value: Any, most: int) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.2f}" if abs(value) < 1e15 and round(value, 2) == value else repr(value)
    if isinstance(value, int | float):
        return str(value) if not abs(value) >= 10**most else "a number of more digits than are shown"
    if not isinstance(value, str):
        value = _dump_json(value)
    shown = _shorten_line(value, most)
    if _PLAIN_WORD.fullmatch(shown):
        return shown
    quoted = "“" + shown.replace("“", "'").replace("”", "'") + "”"
    return f"{ISOLATE}{quoted}{END_ISOLATE}" if is_right_to_left(shown) else quoted


def is_right_to_left(text: str) -> bool:
    """Whether ``text`` has letters that are written from right to left."""
    return not text.isascii() and any(bidirectional(char) in ("R", "AL", "AN") for char in text)


def drop_isolates(summary: str) -> str:
    """Return a summary for a place that writes all text from left to right, such as a terminal."""
    return summary.replace(ISOLATE, "").replace(END_ISOLATE, "")


def _dump_json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):
        return "…"


def _is_long(value: Any) -> bool:
    return isinstance(value, str) and len(value) > _VALUE_CHARS


def _shorten_line(text: str, most: int) -> str:
    line = " ".join(text[: 4 * most].split())
    return show_controls(line if len(line) <= most else line[:most] + "…")


def _cut(text: str) -> str:
    return text if len(text) <= SUMMARY_CHARS else text[: SUMMARY_CHARS - 1] + "…"
