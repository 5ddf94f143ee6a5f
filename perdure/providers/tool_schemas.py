"""A tool as each wire format takes it: the vendors' rules as a table, and the translation that follows it.

A vendor refuses a whole request for one tool that breaks its rules, so a tool is rewritten, or left out alone. The
rules are what the vendors publish and what their validators say in public reports (``source``). A tool is translated
once for its definition; the rest of a request never looks into a schema.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import BadRequestError
from ..ports.model import Completed, StreamEvent, ToolCallDelta, ToolSpec
from ..types.messages import ToolCallPart
from .encoding import encode_json_text
from .json_schemas import (
    SAME_OBJECT,
    Schema,
    add_notes,
    cut_levels,
    describe_keyword,
    fold_root,
    iter_subschemas,
    map_subschemas,
    repair_schema,
    resolve_references,
)

logger = logging.getLogger("perdure.worker")

_COMBINATORS = frozenset(("anyOf", "oneOf", "allOf"))
MAX_DEFINITION_LEVELS = 150
"""Levels of nested objects and arrays from which on a tool is left out."""


@dataclass(frozen=True, slots=True)
class ToolRules:
    """What a wire format refuses of a tool. All formats get a schema of draft 2020-12 whose root is an object."""

    name: str
    source: str
    """Where the rules are from."""
    refused_at_root: frozenset[str] = _COMBINATORS
    """Keywords of the root that are folded into it, or told in the tool's description."""
    argument_name: re.Pattern[str] | None = None
    """What the name of an argument must match: others are renamed, and named back in calls."""
    tool_name: re.Pattern[str] = re.compile(r"[a-zA-Z0-9_-]{1,64}")
    needs_items: bool = False
    """An array must say ``items``, an object ``properties``, and no schema is a boolean."""
    has_lookaround: bool = True
    """Patterns may look around (``(?=…)``)."""
    keywords: frozenset[str] | None = None
    """The only keywords that the format knows; others are told in the description."""
    formats: frozenset[str] | None = None
    max_levels: int = 40
    """Schemas in each other. Nobody publishes it: where parsers of JSON end, with room."""
    needs_description: bool = False


OPENAI = ToolRules(
    "openai",
    "platform.openai.com/docs/guides/function-calling; the API's own words: 'schema must have type 'object' and not "
    "have 'oneOf'/'anyOf'/'allOf'/'enum'/'const'/'not' at the top level' (langchainjs#9804, navop#247), 'array schema "
    "missing items' (openai-agents-python#302), 'object schema missing properties' (github-mcp-server#1548), 'regex "
    "lookaround is not supported' (opencode#32073)",
    refused_at_root=_COMBINATORS | {"enum", "const", "not"},
    needs_items=True,
    has_lookaround=False,
)
ANTHROPIC = ToolRules(
    "anthropic",
    "platform.claude.com/docs/en/agents-and-tools/tool-use; the API's own words: 'input_schema does not support oneOf, "
    "allOf, or anyOf at the top level' (claude-code#5319), 'Property keys should match pattern', of the root alone "
    "(accelerated-intelligent-document-processing-on-aws#709), 'It must match JSON Schema draft 2020-12' "
    "(claude-code#63673)",
    argument_name=re.compile(r"[a-zA-Z0-9_.-]{1,64}"),
)
PORTABLE = replace(
    OPENAI,
    name="portable",
    source="the rules of both: servers pass a request of OpenAI's format on to a Claude model (OpenRouter, Bedrock)",
    argument_name=ANTHROPIC.argument_name,
)
GOOGLE = ToolRules(
    "google",
    "ai.google.dev/api/caching#FunctionDeclaration, and google.genai.types: the keywords of responseJsonSchema, cyclic "
    "references, the names of functions and parameters; the API's own words: 'required[0]: property is not defined' "
    "(probe#569), 'enum[0]: cannot be empty' (runlore#40), 'items: missing field' (cline#7339)",
    refused_at_root=_COMBINATORS,
    argument_name=re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}"),
    tool_name=re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}"),
    keywords=frozenset(
        [
            *("$id", "$anchor", "$ref", "$defs", "type", "format", "title", "description", "enum", "items"),
            *("prefixItems", "minItems", "maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties"),
            *("additionalProperties", "required", "propertyOrdering"),
        ]
    ),
    formats=frozenset(["date-time", "date", "time", "enum", "int32", "int64", "float", "double"]),
    max_levels=15,  # protobuf takes 100 levels, of which each level of JSON has three
    needs_description=True,
)
_CLAUDE_BEHIND_OPENAI = re.compile(r"claude|anthropic", re.IGNORECASE)


def get_rules(format: str, model: str) -> ToolRules:
    """The rules of the wire format for ``model``, which may be another vendor's behind a gateway."""
    if format == "anthropic":
        return ANTHROPIC
    if format == "google":
        return GOOGLE
    if format in ("openai", "openai-responses") and not _CLAUDE_BEHIND_OPENAI.search(model):
        return OPENAI
    return PORTABLE


# ---
# A tool on the wire, and its calls back.


@dataclass(frozen=True, slots=True)
class WireTool:
    """A tool as a format takes it."""

    spec: ToolSpec
    name: str
    description: str
    parameters: Mapping[str, Any]
    own_names: Mapping[str, str] = field(default_factory=dict)
    """Names of arguments on the wire that are not their own, and their own ones."""
    flaw: str | None = None
    """Why the tool is left out."""

    def restore_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """``arguments`` of a call under their own names."""
        return {self.own_names.get(name, name): value for name, value in arguments.items()}


@dataclass(frozen=True, slots=True)
class WireTools:
    """The tools of a request."""

    offered: Sequence[WireTool]
    left_out: Mapping[str, str]
    """Names of tools that the vendor would refuse, and the reasons."""
    renamed: Mapping[str, WireTool]
    """By their names on the wire: tools whose calls are not as the model makes them."""
    by_name: Mapping[str, WireTool] = field(default_factory=dict)
    """By their names on the wire: all that are offered."""

    def restore(self, event: StreamEvent) -> StreamEvent:
        """``event`` of a reply with the tools' and arguments' own names. The text of streamed arguments stays."""
        if isinstance(event, ToolCallDelta):
            tool = self._find_called(event.name)
            return event if tool is None or tool.spec.name == event.name else replace(event, name=tool.spec.name)
        if isinstance(event, Completed) and any(isinstance(part, ToolCallPart) for part in event.parts):
            return replace(event, parts=tuple(map(self._restore_part, event.parts)))
        return event

    def _restore_part(self, part: Any) -> Any:
        if not isinstance(part, ToolCallPart) or (tool := self._find_called(part.name)) is None:
            return part
        arguments = tool.restore_arguments(part.arguments) if tool.own_names else part.arguments
        return part.model_copy(update={"name": tool.spec.name, "arguments": arguments})

    def _find_called(self, name: str) -> WireTool | None:
        """The tool that a model means by ``name``; None if that is its name, and nothing of the call was changed."""
        if name in self.by_name:
            return self.renamed.get(name)
        match = _WRAPPED_NAME.fullmatch(name)
        return None if match is None else self.by_name.get(match["name"])


_WRAPPED_NAME = re.compile(
    r"\s*(?:(?:functions?|default_api|default|tools?)[.:])?(?P<name>[\w.-]+?)(?::\d+)?\s*(?:<\|.*)?", re.DOTALL
)
"""A name with what a model's own format puts around it: ``functions.pay`` (gpt-oss), ``functions.pay:0`` (Kimi),
``default_api.pay`` (Gemini), ``pay<|channel|>commentary`` (gpt-oss)."""


def translate_tools(rules: ToolRules, specs: Iterable[ToolSpec]) -> WireTools:
    """The tools of a request as ``rules`` allow them. Each is translated once for its definition."""
    offered: dict[str, WireTool] = {}
    left_out: dict[str, str] = {}
    for spec in specs:
        tool: WireTool = spec.get_wire_form(rules.name, lambda spec: translate_tool(rules, spec))
        flaw = tool.flaw
        if flaw is None and (other := offered.get(tool.name)) is not None:
            flaw = f"its name on the wire is {tool.name!r}, as that of {other.spec.name!r}"
        if flaw is None:
            offered[tool.name] = tool
        else:
            left_out[spec.name] = flaw
    renamed = {name: tool for name, tool in offered.items() if tool.own_names or name != tool.spec.name}
    return WireTools([*offered.values()], left_out, renamed, offered)


def encode_name(rules: ToolRules, name: str) -> str:
    """``name`` of a tool as ``rules`` take it: the same for its definition and its calls, in every process."""
    if rules.tool_name.fullmatch(name):
        return name
    return _shorten(f"_{re.sub(r'[^a-zA-Z0-9_-]', '_', name)}", name)


def _shorten(name: str, own: str) -> str:
    """``name`` with a digest of the ``own`` name, in 64 characters."""
    return f"{name[:57]}_{hashlib.sha256(own.encode(errors='replace')).hexdigest()[:6]}"


def translate_tool(rules: ToolRules, spec: ToolSpec) -> WireTool:
    """``spec`` as ``rules`` allow it; with a flaw if that is not possible."""
    name = encode_name(rules, spec.name)
    description = spec.description or (spec.name if rules.needs_description else "")
    if (flaw := _find_flaw(spec.parameters)) is not None:
        logger.warning("tool %s is left out of requests in the format of %s: %s", spec.name, rules.name, flaw)
        return WireTool(spec, name, description, {}, flaw=flaw)
    try:
        parameters, notes, own_names = translate_parameters(rules, spec.parameters)
    except Exception as error:  # a fault of ours: it costs this tool, and not the agent
        logger.exception("tool %s is left out of requests in the format of %s", spec.name, rules.name)
        return WireTool(spec, name, description, {}, flaw=f"its schema cannot be translated ({type(error).__name__})")
    if notes:
        description = f"{description}\n\nArguments: {'; '.join(notes)}".strip()
    return WireTool(spec, name, description, parameters, own_names)


def _find_flaw(parameters: object) -> str | None:
    if not isinstance(parameters, Mapping):
        return f"its schema is {type(parameters).__name__}, not an object"
    kinds = repair_schema({"type": parameters.get("type")}).get("type", "object")
    if kinds != "object" and "object" not in (kinds if isinstance(kinds, list) else ()):
        return f"its arguments are of type {parameters['type']!r:.100}, not an object"
    level: list[Any] = [parameters]
    for _ in range(MAX_DEFINITION_LEVELS):
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, Mapping) else value)
            if isinstance(inner, Mapping | list | tuple)
        ]
        if not level:
            break
    else:
        return f"its schema is nested deeper than {MAX_DEFINITION_LEVELS} levels"
    try:
        encode_json_text(dict(parameters))
    except (BadRequestError, TypeError):
        return "its schema has a value that JSON does not have"
    return None


def translate_parameters(rules: ToolRules, parameters: Mapping[str, Any]) -> tuple[Schema, list[str], dict[str, str]]:
    """The schema of a tool's arguments, what is to be said of it in words, and arguments' own names by new ones."""
    schema = resolve_references(repair_schema(parameters))
    schema, notes = fold_root(schema, rules.refused_at_root)
    if schema.get("type") != "object":
        schema = {**schema, "type": "object"} if "type" in schema else {"type": "object", **schema}
    own_names: dict[str, str] = {}
    if rules.argument_name is not None:
        schema, own_names = _rename_arguments(schema, rules.argument_name)
    schema = cut_levels(schema, rules.max_levels)
    if rules.needs_items:
        schema = _complete_schema(schema)
        schema.setdefault("properties", {})
    if not rules.has_lookaround:
        schema = _move_patterns(schema)
    if rules.keywords is not None:
        schema = _loosen_cycles(_translate_keywords(rules, schema))
    return schema, notes, own_names


# ---
# Names of arguments.


def _rename_arguments(schema: Schema, allowed: re.Pattern[str]) -> tuple[Schema, dict[str, str]]:
    """``schema`` whose root has only names that ``allowed`` matches, and the own names by the new ones."""
    wire_names: dict[str, str] = {}
    for name in _list_names(schema):
        if not allowed.fullmatch(name):
            begin = name if name[:1].isalpha() or name[:1] == "_" else f"_{name}"
            wire_names[name] = _shorten(re.sub(r"[^a-zA-Z0-9_]", "_", begin), name)
    if not wire_names:
        return schema, {}
    renamed = _rename(schema, wire_names)
    for name, wire_name in wire_names.items():
        inner = renamed.get("properties", {}).get(wire_name)
        if isinstance(inner, dict):
            renamed["properties"][wire_name] = add_notes(inner, [describe_keyword("named", name)])
    return renamed, {wire_name: name for name, wire_name in wire_names.items()}


def _list_names(schema: Any) -> list[str]:
    """The names of fields of the value that ``schema`` speaks of."""
    if not isinstance(schema, Mapping):
        return []
    names = [*schema.get("properties", ()), *schema.get("required", ())]
    for key, value in schema.items():
        if key in SAME_OBJECT:
            names += [name for inner in iter_subschemas({key: value}) for name in _list_names(inner)]
        if key in ("dependentSchemas", "dependentRequired") and isinstance(value, Mapping):
            names += value
    return list(dict.fromkeys(names))


def _rename(schema: Any, names: Mapping[str, str]) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    renamed: Schema = {}
    for key, value in schema.items():
        if key in ("properties", "dependentSchemas"):
            inside = key != "properties"
            value = {names.get(k, k): _rename(inner, names) if inside else inner for k, inner in value.items()}
        elif key in ("required", "propertyOrdering") and isinstance(value, list):
            value = [names.get(name, name) if isinstance(name, str) else name for name in value]
        elif key == "dependentRequired":
            value = {names.get(k, k): [names.get(name, name) for name in inner] for k, inner in value.items()}
        elif key in SAME_OBJECT:
            value = [_rename(inner, names) for inner in value] if isinstance(value, list) else _rename(value, names)
        renamed[key] = value
    return renamed


# ---
# OpenAI: items, properties, no booleans, no patterns that look around.


def _complete_schema(schema: Any) -> Any:
    """``schema`` with what OpenAI's validator misses; it means the same."""
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    if not isinstance(schema, Mapping):
        return schema
    kept = {
        key: value
        for key, value in schema.items()
        if key in ("additionalProperties", "unevaluatedProperties", "items") and isinstance(value, bool)
    }
    completed = {**map_subschemas(schema, _complete_schema), **kept}
    kinds = completed.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "array" in kinds or "prefixItems" in completed or "items" in completed:
        _add_items(completed)
    if "object" in kinds and "properties" not in completed:
        completed["properties"] = {}
    return completed


def _add_items(schema: Schema) -> None:
    """Give an array ``items``; behind a tuple of a fixed length it says what its places are."""
    items, places = schema.get("items", True), schema.get("prefixItems", [])
    if not isinstance(items, bool):
        return
    if items is False:
        schema["maxItems"] = min(len(places), schema.get("maxItems", math.inf))
    schema["items"] = {}
    if places and schema.get("maxItems", math.inf) <= len(places):
        kinds = [place for index, place in enumerate(places) if place not in places[:index]]
        schema["items"] = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


_LOOKAROUND = re.compile(r"\(\?(?:[=!]|<[=!])")


def _move_patterns(schema: Any) -> Any:
    """``schema`` with patterns that look around in the description."""
    if not isinstance(schema, Mapping):
        return schema
    moved = map_subschemas(schema, _move_patterns)
    notes = []
    if isinstance(pattern := moved.get("pattern"), str) and _LOOKAROUND.search(pattern):
        notes.append(describe_keyword("pattern", moved.pop("pattern")))
    patterns = moved.get("patternProperties")
    if isinstance(patterns, Mapping) and any(map(_LOOKAROUND.search, patterns)):
        notes.append(describe_keyword("patternProperties", moved.pop("patternProperties")))
    return add_notes(moved, notes)


# ---
# Google: a part of JSON Schema. A keyword without an equivalent goes into the description.


_DROPPED_KEYWORDS = frozenset(("$schema", "$comment", "discriminator", "deprecated", "readOnly", "writeOnly", "title"))
"""Keywords that a model does not need."""


def _translate_keywords(rules: ToolRules, schema: object) -> Schema:
    """``schema`` in the keywords of ``rules``."""
    if not isinstance(schema, Mapping):
        return {} if schema is not False else {"description": "(no value is allowed)"}
    schema = dict(schema)
    inner = schema.get("allOf")
    if isinstance(inner, list) and len(inner) == 1 and isinstance(inner[0], Mapping):
        del schema["allOf"]  # of one schema, which generators write beside a reference: the same as that schema
        schema = {**inner[0], **schema}
    if "definitions" in schema:
        schema["$defs"] = {**schema.pop("definitions"), **schema.get("$defs", {})}
    if "$ref" in schema:
        return _translate_reference(rules, schema)
    translated: Schema = {}
    notes: list[str] = []
    for key, value in schema.items():
        if key == "const":
            _translate_enum([value], translated, notes)
        elif key == "enum":
            _translate_enum(list(value), translated, notes)
        elif key == "format" and rules.formats is not None and value not in rules.formats:
            notes.append(describe_keyword(key, value))
        elif key in ("exclusiveMinimum", "exclusiveMaximum") and schema.get("type") == "integer":
            bound = math.floor(value) + 1 if key.endswith("Minimum") else math.ceil(value) - 1
            limit = key.replace("exclusiveM", "m")
            tighter = max if key.endswith("Minimum") else min
            translated[limit] = tighter(bound, schema.get(limit, bound))
        elif key in (rules.keywords or ()) and key not in _DROPPED_KEYWORDS:
            translated.setdefault(key, _translate_value(rules, key, value))
        elif key not in _DROPPED_KEYWORDS:
            notes.append(describe_keyword(key, value))
    _complete_object(translated)
    return add_notes(translated, notes)


def _translate_value(rules: ToolRules, key: str, value: Any) -> Any:
    if key in ("properties", "$defs"):
        return {name: _translate_keywords(rules, inner) for name, inner in value.items()}
    if key in ("anyOf", "oneOf", "prefixItems"):
        return [_translate_keywords(rules, inner) for inner in value]
    if key == "items" or (key == "additionalProperties" and not isinstance(value, bool)):
        return _translate_keywords(rules, value)
    return list(value) if isinstance(value, list) else value


def _complete_object(translated: Schema) -> None:
    """Each required property is defined, and each array has items."""
    missing = [name for name in translated.get("required", ()) if name not in translated.get("properties", {})]
    if missing:
        translated["properties"] = {**translated.get("properties", {}), **{name: {} for name in missing}}
        translated.setdefault("type", "object")
    kinds = translated.get("type")
    is_array = kinds == "array" or (isinstance(kinds, list) and "array" in kinds)
    if is_array and not translated.keys() & {"items", "prefixItems"}:
        translated["items"] = {}


def _translate_reference(rules: ToolRules, schema: Schema) -> Schema:
    """A reference: nothing may stand beside it but other ``$`` keywords."""
    translated: Schema = {"$ref": str(schema["$ref"]).replace("#/definitions/", "#/$defs/")}
    beside = {key: value for key, value in schema.items() if not key.startswith("$") and key not in _DROPPED_KEYWORDS}
    description = beside.pop("description", None)
    beside.pop("default", None)
    notes = [describe_keyword(key, value) for key, value in beside.items()]
    if description or notes:
        translated = {"anyOf": [translated], **({"description": description} if description else {})}
        add_notes(translated, notes)
    if "$defs" in schema:
        translated["$defs"] = _translate_value(rules, "$defs", schema["$defs"])
    return translated


def _translate_enum(values: list[Any], translated: Schema, notes: list[str]) -> None:
    """Texts that are not empty, and numbers, may be listed; other values go into the description."""
    texts = all(isinstance(value, str) and value for value in values)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if values and (texts or numbers):
        translated["enum"] = values
        whole = all(isinstance(value, int) for value in values)
        translated.setdefault("type", "string" if texts else "integer" if whole else "number")
        return
    if values and all(isinstance(value, bool) for value in values):
        translated.setdefault("type", "boolean")
    elif values and all(isinstance(value, str) for value in values):
        translated.setdefault("type", "string")
    notes.append(f"one of {json.dumps(values, ensure_ascii=False)}")


@dataclass(frozen=True, slots=True)
class _Reference:
    """A place where a definition names a definition, in required properties alone."""

    source: str
    target: str
    holder: Schema
    """The schema that is the reference."""
    owner: Schema | None
    """The innermost object around it, and its property."""
    property: str


def _loosen_cycles(root: Schema) -> Schema:
    """``root`` (translated, so that it may be changed) whose references go in circles only through properties that are
    not required: Gemini takes no others. That a property is required is then said in words."""
    root = _name_root(root)
    definitions = root.get("$defs", {})
    references = [
        reference for name, schema in definitions.items() for reference in _list_references(name, schema, None, "")
    ]
    targets: dict[str, set[str]] = {}
    for reference in references:
        targets.setdefault(reference.source, set()).add(reference.target)
    reached = {name: _list_reached(targets, name) for name in targets}
    for reference in references:
        if reference.source not in reached.get(reference.target, ()):
            continue
        if reference.owner is not None:
            if reference.property in reference.owner["required"]:
                reference.owner["required"].remove(reference.property)
                add_notes(reference.owner, [f"required: {reference.property}"])
        elif "$ref" in reference.holder:
            reference.holder.clear()
            reference.holder["description"] = f"(schema: {reference.target})"
    return root


def _name_root(root: Schema) -> Schema:
    """``root`` as a definition, if it is referred to."""
    places = [holder for holder in _iter_schemas(root) if holder.get("$ref") == "#"]
    if not places:
        return root
    name = "arguments"
    while name in root.get("$defs", {}):
        name += "_"
    for holder in places:
        holder["$ref"] = f"#/$defs/{name}"
    own = {key: value for key, value in root.items() if key != "$defs"}
    copied: Schema = json.loads(json.dumps(own))
    return {**root, "$defs": {**root.get("$defs", {}), name: copied}}


def _iter_schemas(schema: Any) -> Iterable[Schema]:
    if isinstance(schema, dict):
        yield schema
        for inner in iter_subschemas(schema):
            yield from _iter_schemas(inner)


def _list_references(source: str, schema: Any, owner: Schema | None, name: str) -> Iterable[_Reference]:
    if not isinstance(schema, dict):
        return
    if isinstance(reference := schema.get("$ref"), str):
        yield _Reference(source, reference.removeprefix("#/$defs/"), schema, owner, name)
    required = schema.get("required", ())
    for key, inner in schema.get("properties", {}).items():
        if key in required:
            yield from _list_references(source, inner, schema, key)
    others = {key: value for key, value in schema.items() if key not in ("properties", "$defs")}
    for inner in iter_subschemas(others):
        yield from _list_references(source, inner, owner, name)


def _list_reached(targets: Mapping[str, set[str]], start: str) -> set[str]:
    """The definitions that ``start`` leads to, and itself."""
    seen, waiting = {start}, [start]
    while waiting:
        found = targets.get(waiting.pop(), set()) - seen
        seen |= found
        waiting += found
    return seen


def has_arguments(schema: Mapping[str, Any]) -> bool:
    """Whether a translated schema says anything: Gemini wants none for a tool without arguments."""
    more = schema.keys() - {"type", "properties", "required", "additionalProperties"}
    return bool(more or schema.get("properties") or schema.get("additionalProperties"))
