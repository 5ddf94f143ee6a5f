"""Forms made from JSON Schemas: of a tool's arguments and of an answer; and what a change of arguments changes.

A field that is sent back as it was shown keeps its value, whatever its type; only what a person has changed is parsed.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

from ..client.pages import gather_bounded
from ..errors import InvalidInputError
from ..types.summaries import find_template_flaw, render_summary, summarize_call
from ..types.visible_text import hides_characters
from ..web.approvals import PendingCall as InboxCall
from ..web.limits import parse_json_body
from ..web.lists import read_visible_agents
from ..web.operations import Call
from ..web.problems import WebError
from .access import Form
from .texts import format_json, mark_changes

MAX_FIELDS = 60
"""Most fields of a form; arguments with more are changed as JSON."""
_LONG_CHARS = 60
PREFIX = "arg."
"""What the names of fields begin with, so that no argument's name is that of another field of the form."""
ANSWER = "answer"
"""Name of the field of an answer that is not an object."""

FieldKind = Literal["text", "long", "number", "boolean", "choice", "json"]


@dataclass(frozen=True)
class Field:
    """A field of a form."""

    name: str
    kind: FieldKind
    text: str
    """What is in it at first: its value, for JSON encoded; "" for none."""
    label: str = ""
    hint: str = ""
    is_required: bool = False
    is_nullable: bool = False
    options: Sequence[tuple[str, str]] = field(default_factory=tuple)
    """Value and label of each choice."""
    default: str = ""
    """JSON of what a tool takes where the field is not given, if its schema says so."""


def build_fields(schema: Mapping[str, Any] | None, values: Mapping[str, Any], group: str | None = None) -> list[Field]:
    """Build the fields of an object: those that it has, in their order, then the others of its schema. ``group`` keeps
    apart the fields of several objects in one form, which :func:`read_group` reads."""
    properties = (schema or {}).get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    required = (schema or {}).get("required")
    # A recorded schema has its properties by name: what is required is still in the author's order.
    first = [name for name in required if name in properties] if isinstance(required, list) else []
    names = list(dict.fromkeys([*values, *first, *map(str, properties)]))
    if len(names) > MAX_FIELDS:
        return []
    fields = [
        _build_field(
            name,
            resolve_reference(schema, properties.get(name)),
            values.get(name),
            is_given=name in values,
            is_required=isinstance(required, list) and name in required,
        )
        for name in names
    ]
    return fields if group is None else [replace(known, name=f"{group}.{known.name}") for known in fields]


def read_group(form: Form, schema: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Read an object whose fields :func:`build_fields` has built as a group, or its JSON, if it has too many fields.
    Raises ``InvalidInputError``."""
    if fields := build_fields(schema, {}, group):
        return {name.removeprefix(f"{group}."): value for name, value in read_fields(form, fields, {}).items()}
    value = parse_json_field(group, form.get(f"{PREFIX}{group}").strip() or "{}")
    if not isinstance(value, dict):
        raise InvalidInputError(f"{group}: it is an object of names and values")
    return value


def build_answer_fields(schema: Mapping[str, Any] | None) -> list[Field]:
    """Build the fields of an answer: one for each property of an object, otherwise one alone."""
    if schema is not None and schema.get("type") == "object" and isinstance(schema.get("properties"), Mapping):
        return build_fields(schema, {})
    resolved = resolve_reference(schema, schema) if schema is not None else {"type": "string"}
    answer = _build_field(ANSWER, resolved, None, is_given=False, is_required=True)
    if answer.kind == "text":
        answer = replace(answer, kind="long")
    return [answer]


def resolve_reference(root: Mapping[str, Any] | None, schema: Any) -> Mapping[str, Any]:
    """Return the schema that ``$ref`` in ``schema`` names, at most ten deep; {} for what is none."""
    for _ in range(10):
        ref = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(ref, str):
            break
        found: Any = root
        for step in ref.removeprefix("#").strip("/").split("/"):
            found = found.get(step) if isinstance(found, Mapping) else None
        schema = found
    return schema if isinstance(schema, Mapping) else {}


def _build_field(name: str, schema: Mapping[str, Any], value: Any, *, is_given: bool, is_required: bool) -> Field:
    kinds, options = _list_types(schema)
    hint = schema.get("description")
    common: dict[str, Any] = {
        "label": str(schema.get("title") or name) if name == ANSWER else name,
        "hint": hint if isinstance(hint, str) else "",
        "is_required": is_required,
        "is_nullable": "null" in kinds,
        "default": json.dumps(schema["default"], ensure_ascii=False)[:100] if "default" in schema else "",
    }
    plain = kinds - {"null"}
    if options is not None and (not is_given or value in options):
        choices = tuple((json.dumps(option), str(option)) for option in options)
        return Field(name, "choice", json.dumps(value) if is_given else "", options=choices, **common)
    if plain == {"boolean"} and (not is_given or isinstance(value, bool) or value is None):
        choices = (("true", "yes"), ("false", "no"), *((("null", "none"),) if "null" in kinds else ()))
        return Field(name, "choice", json.dumps(value) if is_given else "", options=choices, **common)
    if plain and plain <= {"integer", "number"} and (not is_given or _is_number(value)):
        return Field(name, "number", json.dumps(value) if is_given else "", **common)
    if plain == {"string"} and (not is_given or (isinstance(value, str) and not hides_characters(value))):
        text = value if is_given else ""
        is_long = len(text) > _LONG_CHARS or "\n" in text
        return Field(name, "long" if is_long else "text", text, **common)
    return Field(name, "json", format_json(value) if is_given else "", **common)


def _list_types(schema: Mapping[str, Any]) -> tuple[set[str], list[Any] | None]:
    """Return the types that a schema allows, and its choices, if it has some."""
    options = schema.get("enum")
    if isinstance(options, list) and 0 < len(options) <= 100:
        return {"enum"}, options
    kinds = schema.get("type")
    found = {kinds} if isinstance(kinds, str) else {kind for kind in kinds or () if isinstance(kind, str)}
    for alternative in schema.get("anyOf") or ():
        kind = alternative.get("type") if isinstance(alternative, Mapping) else None
        found.add(kind if isinstance(kind, str) and "enum" not in alternative else "other")
    return found, None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_fields(form: Form, fields: Sequence[Field], values: Mapping[str, Any]) -> dict[str, Any]:
    """Read the values of the fields that a form was built with. Raises ``InvalidInputError``, which names the field."""
    read: dict[str, Any] = {}
    for known in fields:
        text = form.get(PREFIX + known.name)
        if text == known.text or PREFIX + known.name not in form:
            if known.name in values:
                read[known.name] = values[known.name]
            elif known.is_required and text:
                read[known.name] = _parse(known, text)
            elif known.is_required:
                raise InvalidInputError(f"{known.name}: it is missing")
        elif text == "" and known.kind != "text" and known.kind != "long":
            if known.is_required:
                raise InvalidInputError(f"{known.name}: it is missing")
        elif text == "" and known.is_nullable:
            read[known.name] = None
        else:
            read[known.name] = _parse(known, text)
    return read


def _parse(known: Field, text: str) -> Any:
    if known.kind in ("text", "long"):
        return text
    if known.kind == "choice" and text not in [value for value, _ in known.options]:
        raise InvalidInputError(f"{known.name}: {text!r:.60} is none of its choices")
    return parse_json_field(known.name, text.strip(), must_be_number=known.kind == "number")


def parse_json_field(name: str, text: str, *, must_be_number: bool = False) -> Any:
    """Parse the JSON of a field. Raises ``InvalidInputError``, which names it."""
    try:
        value = parse_json_body(text.encode())
    except WebError as error:
        reason = "it is not a number" if must_be_number else error.message.replace("the body", "the text")
        raise InvalidInputError(f"{name}: {reason}") from None
    if must_be_number and not _is_number(value):
        raise InvalidInputError(f"{name}: it is not a number")
    return value


def read_answer(form: Form, schema: Mapping[str, Any] | None) -> Any:
    """Read an answer. Raises ``InvalidInputError``."""
    fields = build_answer_fields(schema)
    values = read_fields(form, fields, {})
    return values.get(ANSWER) if [known.name for known in fields] == [ANSWER] else values


# ---
# The schemas of tools, by the definitions that workers have recorded.


def list_defaults(schema: Mapping[str, Any], given: Mapping[str, Any]) -> list[Field]:
    """List the arguments that are not given, and that the tool has a value for."""
    fields = build_fields(schema, given)
    return [known for known in fields if known.name not in given and known.default not in ("", "null")]


async def find_tool_schemas(call: Call, waits: Sequence[InboxCall]) -> dict[tuple[str, str], Mapping[str, Any] | None]:
    """Return the schemas of the arguments of the tools of ``waits``, by agent and tool."""
    agents = list(dict.fromkeys(wait.agent for wait in waits))
    found = await gather_bounded(lambda name: read_visible_agents(call, name), agents)
    definitions = {name: json.loads(rows[0].body) for known in found for name, rows in known.items()}
    return {
        (wait.agent, wait.tool): get_parameters(_pick_tool(definitions[wait.agent], wait.tool))
        for wait in waits
        if wait.agent in definitions
    }


async def find_tool(call: Call, agent: str, tool: str) -> Mapping[str, Any]:
    """Return a tool as the newest definition of the agent that a worker has recorded has it; {} if there is none that
    the caller may see."""
    rows = (await read_visible_agents(call, agent)).get(agent)
    return _pick_tool(json.loads(rows[0].body), tool) if rows else {}


async def find_tool_schema(call: Call, agent: str, tool: str) -> Mapping[str, Any] | None:
    """Return the schema of a tool's arguments; None if it is not known."""
    return get_parameters(await find_tool(call, agent, tool))


def get_parameters(tool: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema of the arguments of a tool of a definition."""
    schema = tool.get("parameters")
    return schema if isinstance(schema, Mapping) else None


def summarize_changed(tool: Mapping[str, Any], name: str, arguments: Mapping[str, Any]) -> str:
    """Return the summary of a call of a tool of a definition with the arguments that a decision gives it."""
    template, schema = tool.get("summary"), get_parameters(tool) or {}
    if not isinstance(template, str) or find_template_flaw(template, schema) is not None:
        return summarize_call(name, arguments)
    properties = schema.get("properties")
    known = properties.items() if isinstance(properties, Mapping) else ()
    defaults = {key: of["default"] for key, of in known if isinstance(of, Mapping) and "default" in of}
    return render_summary(template, {**defaults, **arguments})


def _pick_tool(definition: Mapping[str, Any], tool: str) -> Mapping[str, Any]:
    known = next((known for known in definition.get("tools", ()) if known.get("name") == tool), None)
    return known if isinstance(known, Mapping) else {}


# ---
# What a change changes.


@dataclass(frozen=True)
class Change:
    """What becomes of an argument: lines that stay (" "), go ("-") and come ("+"). In a line that becomes a similar
    one, the words that differ are marked."""

    name: str
    lines: Sequence[tuple[str, str]]


def find_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Return what differs between two sets of arguments, by name."""
    changes = []
    for name in dict.fromkeys([*old, *new]):
        before, after = (_list_lines(values, name) for values in (old, new))
        if name in old and name in new and json.dumps(old[name]) == json.dumps(new[name]):
            continue
        lines = [(line[0], line[2:]) for line in difflib.ndiff(before, after) if line[0] in " -+"]
        changes.append(Change(name, _mark_lines(lines)))
    return changes


def _mark_lines(lines: list[tuple[str, str]]) -> list[tuple[str, str]]:
    marked = list(lines)
    for index, ((sign, old), (next_sign, new)) in enumerate(pairwise(lines)):
        if (sign, next_sign) == ("-", "+") and (marks := mark_changes(old, new)) is not None:
            marked[index : index + 2] = [("-", marks[0]), ("+", marks[1])]
    return marked


def _list_lines(values: Mapping[str, Any], name: str) -> list[str]:
    if name not in values:
        return []
    value = values[name]
    return value.splitlines() or [""] if isinstance(value, str) else format_json(value).splitlines()
