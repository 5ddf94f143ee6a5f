"""Agents as data: a JSON, TOML or YAML file with a model, instructions, and tools by name; types from JSON Schemas."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, Any, Literal, NotRequired, TypeVar

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, ValidationError
from pydantic_core import SchemaError
from typing_extensions import TypedDict

from ..errors import DefinitionError, RuntimeSetupError
from ..ports import Toolset
from ..tools import Rule, Tool, Toolbox
from ..tools.approvals import parse_rule
from ..types.compaction import COMPACTION_KINDS, Compaction
from ..types.interface import FinishProtocol, OnLimit, StrictInput
from ..types.limits import Limits
from ..types.validation_errors import describe_validation_error
from .agent import Agent

# ---
# Types from a JSON Schema, for agents that are data. Only keywords that a model can be held to are supported.
#
# An object becomes a ``TypedDict``: its values are plain dictionaries.


_SCALAR_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}
_FIELD_CONSTRAINTS = {
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
_TYPE_KEYWORDS = {
    "string": {"minLength", "maxLength", "pattern"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
}
_COMMON_KEYWORDS = {"type", "description", "title", "examples", "$schema"}
MAX_SCHEMA_DEPTH = 20
_make_typed_dict: Any = TypedDict  # called with names that are known only at run time


def build_type_from_schema(schema: Any, where: str) -> Any:
    """Build a type that pydantic accepts and that the values of ``schema`` fit. ``where`` names it in errors.

    Raises ``DefinitionError`` that names the place and the keyword.
    """
    return _build_schema_type(schema, where, 0)


def _build_schema_type(schema: Any, where: str, depth: int) -> Any:
    if not isinstance(schema, Mapping):
        raise _build_schema_type_error(
            where, f"a JSON Schema is an object, not {schema!r:.60}", 'For instance {"type": "string"}.'
        )
    if depth > MAX_SCHEMA_DEPTH:
        raise _build_schema_type_error(
            where,
            f"it is more than {MAX_SCHEMA_DEPTH} levels deep",
            "Make it flatter: models fill in flat ones better.",
        )
    said = {"description": schema["description"]} if isinstance(schema.get("description"), str) else {}
    if "enum" in schema or "const" in schema:
        return _annotate_type(_build_literal_type(schema, where), said)
    kinds = schema.get("type")
    if isinstance(kinds, list) and kinds:
        found: Any = None
        for number, kind in enumerate(kinds):
            one = _build_schema_type({**_select_type_keywords(schema, kind), "type": kind}, where, depth)
            found = one if number == 0 else found | one
        return _annotate_type(found, said)
    if kinds is None and (strange := sorted(schema.keys() - _COMMON_KEYWORDS - set().union(*_TYPE_KEYWORDS.values()))):
        raise _build_schema_type_error(
            where, f"{strange[0]!r} is not supported", "Say the type of each value, and what it consists of."
        )
    if kinds not in (*_SCALAR_TYPES, "array", "object"):
        raise _build_schema_type_error(
            f"{where}.type",
            f"{kinds!r:.60} is none of {', '.join([*_SCALAR_TYPES, 'array', 'object'])}, or a list of them",
            "Say the type of each value.",
        )
    if unknown := sorted(schema.keys() - _COMMON_KEYWORDS - _TYPE_KEYWORDS.get(kinds, set())):
        known = ", ".join(sorted(_COMMON_KEYWORDS | _TYPE_KEYWORDS.get(kinds, set())))
        raise _build_schema_type_error(
            where, f"{unknown[0]!r} of {kinds} is not supported", f"There is: {known}; and enum, const."
        )
    bounds = {_FIELD_CONSTRAINTS[name]: schema[name] for name in schema if name in _FIELD_CONSTRAINTS}
    _check_constraints(where, list if kinds == "array" else _SCALAR_TYPES.get(kinds), bounds)
    if kinds == "array":
        items: Any = _build_schema_type(schema.get("items", {}), f"{where}.items", depth + 1)
        return _annotate_type(list[items], said | bounds)
    return _annotate_type(
        _build_object_type(schema, where, depth) if kinds == "object" else _SCALAR_TYPES[kinds], said | bounds
    )


def _check_constraints(where: str, kind: Any, bounds: Mapping[str, Any]) -> None:
    """Raise ``DefinitionError`` for an invalid pattern and for a bound that is not a number."""
    if bounds:
        try:
            TypeAdapter(Annotated[kind, Field(**bounds)])
        except (SchemaError, TypeError) as error:
            why = str(error).strip().rpartition("\n")[2].strip()
            raise _build_schema_type_error(
                where, why, "Bounds are numbers, and a pattern is a regular expression."
            ) from None


def _build_object_type(schema: Mapping[str, Any], where: str, depth: int) -> Any:
    given, required = schema.get("properties"), schema.get("required", ())
    if not isinstance(given, Mapping) or not given:
        raise _build_schema_type_error(
            where, "an object has properties", 'For instance {"properties": {"answer": {"type": "string"}}}.'
        )
    if schema.get("additionalProperties", False) is not False:
        raise _build_schema_type_error(
            f"{where}.additionalProperties", "it can be false alone", "Name the properties that there may be."
        )
    if not isinstance(required, Sequence) or isinstance(required, str) or not all(one in given for one in required):
        raise _build_schema_type_error(
            f"{where}.required", f"{required!r:.60} is no list of its properties", "List their names."
        )
    fields = {name: _build_schema_type(one, f"{where}.properties.{name}", depth + 1) for name, one in given.items()}
    kinds = {name: kind if name in required else NotRequired[kind] for name, kind in fields.items()}
    title = schema.get("title")
    made = _make_typed_dict(title if isinstance(title, str) and title.isidentifier() else "Object", kinds)
    made.__pydantic_config__ = ConfigDict(extra="forbid")
    return made


def _build_literal_type(schema: Mapping[str, Any], where: str) -> Any:
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    plain = isinstance(values, list) and all(isinstance(one, str | int | bool | None) for one in values)
    if not plain or not values:
        raise _build_schema_type_error(
            f"{where}.enum", "it lists texts, whole numbers, true, false or null", 'For instance ["a", "b"].'
        )
    return Literal[tuple(values)]


def _select_type_keywords(schema: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Return the keywords of ``schema`` that apply to type ``kind``."""
    others = set().union(*_TYPE_KEYWORDS.values()) - _TYPE_KEYWORDS.get(kind, set()) if isinstance(kind, str) else set()
    return {name: value for name, value in schema.items() if name not in others | {"description", "title"}}


def _annotate_type(kind: Any, facts: Mapping[str, Any]) -> Any:
    return Annotated[kind, Field(**facts)] if facts else kind


def _build_schema_type_error(where: str, why: str, hint: str) -> DefinitionError:
    return DefinitionError(f"{where}: {why}", hint=hint)


MAX_AGENT_FILE_BYTES = 1024 * 1024
MAX_AGENT_FILE_VALUES = 100_000
"""Most values in one file. A value that YAML aliases repeat counts each time."""

T = TypeVar("T")
JsonFields = dict[str, JsonValue]


class AgentSpec(StrictInput):
    """What an agent file may say. As in ``Agent``; only what refers to code is a name."""

    name: str
    model: str | list[str]
    description: str = ""
    instructions: str | None = None
    input: JsonFields | None = None
    """JSON Schema, as ``output`` and ``context``."""
    output: JsonFields | None = None
    context: JsonFields | None = None
    tools: tuple[str, ...] = ()
    """Names of tools that the worker has."""
    toolsets: tuple[str, ...] = ()
    """Names of toolsets that the worker has."""
    settings: JsonFields | None = None
    provider_options: JsonFields | None = None
    finish: FinishProtocol | None = None
    parse_retries: int | None = None
    max_iterations: int | None = None
    on_limit: OnLimit | None = None
    limits: JsonFields | None = None
    """As ``Limits``: ``{"cost_usd": 2.0, "turn": {"tokens": 50000}}``."""
    approvals: list[JsonFields] = Field(default=[])
    """Rules: ``[{"allow": "read_*"}, {"ask": "refund", "arguments": {"amount": 5}, "expires": "7d"}]``."""
    compaction: dict[str, JsonFields] = Field(default={})
    """As ``Compaction``, by way: ``{"window": {"tokens": 100000}}``."""


def load_agent(
    source: str | Path | Mapping[str, Any],
    *,
    tools: Iterable[Tool | Callable[..., Any]] = (),
    toolsets: Iterable[Toolset] = (),
) -> Agent:
    """Load the agent that a file describes, or a mapping with the same fields.

    ``tools`` and ``toolsets`` are those that it may refer to by name. A file without a ``name`` names its agent after
    the file. Raises ``DefinitionError`` that names the file and the field, ``RuntimeSetupError`` if no YAML parser is
    installed.
    """
    if isinstance(source, Mapping):
        where, given = "the agent", dict(source)
    else:
        path = Path(source)
        where, given = str(source), {"name": path.stem, **_read_agent_file(path)}
    try:
        spec = AgentSpec.model_validate(given)
    except ValidationError as error:
        problems = _use_json_terms(describe_validation_error(error, "it", max_problems=10))
        known = ", ".join(AgentSpec.model_fields)
        raise DefinitionError(f"{where}: {problems[:1000]}", hint=f"An agent has: {known}.") from None
    try:
        return _build_agent(spec, Toolbox(tools), {one.name: one for one in toolsets})
    except DefinitionError as error:
        raise type(error)(f"{where}: {error.message}", hint=error.hint) from error


def _use_json_terms(message: str) -> str:
    """Rewrite pydantic's message in the terms of JSON, for authors of files."""
    return message.replace("a valid tuple", "a list").replace("a valid dictionary", "an object")


_COPIED_FIELDS = {
    "description",
    "instructions",
    "settings",
    "provider_options",
    "finish",
    "parse_retries",
    "max_iterations",
    "on_limit",
}


def _build_agent(spec: AgentSpec, tools: Toolbox, toolsets: Mapping[str, Toolset]) -> Agent:
    """Build the agent of ``spec``. Raises ``DefinitionError``."""
    plain: dict[str, Any] = spec.model_dump(include=_COPIED_FIELDS, exclude_none=True)
    for field in ("input", "output", "context"):
        if (schema := getattr(spec, field)) is not None:
            plain[field] = build_type_from_schema(schema, field)
    return Agent(
        spec.name,
        spec.model,
        tools=[_get_by_name("tools", name, {tool.name: tool for tool in tools}) for name in spec.tools],
        toolsets=[_get_by_name("toolsets", name, toolsets) for name in spec.toolsets],
        limits=None if spec.limits is None else _parse_file_limits("limits", spec.limits),
        approvals=[_parse_file_rule(place, values) for place, values in enumerate(spec.approvals)],
        compaction=[_parse_file_compaction(way, values) for way, values in spec.compaction.items()] or None,
        **plain,
    )


def _get_by_name(field: str, name: str, known: Mapping[str, T]) -> T:
    if name not in known:
        here = ", ".join(sorted(known)) or "none"
        raise DefinitionError(
            f"{field}: there is no {name!r} (there is: {here})",
            hint=f"Give it to whoever loads the agent: {field}=[…]; for `perdure worker` a list {field} in its file.",
        )
    return known[name]


def _parse_file_limits(where: str, values: JsonFields) -> Limits:
    names = [field.name for field in fields(Limits)]
    if unknown := sorted(values.keys() - set(names)):
        raise DefinitionError(f"{where}: there is no limit {unknown[0]!r}", hint=f"There are: {', '.join(names)}.")
    given: dict[str, Any] = dict(values)
    if isinstance(turn := given.get("turn"), dict):
        given["turn"] = _parse_file_limits(f"{where}.turn", turn)
    return Limits(**given)


def _parse_file_rule(place: int, values: JsonFields) -> Rule:
    try:
        return parse_rule(values)
    except DefinitionError as error:
        raise DefinitionError(f"approvals.{place}: {error.message}", hint=error.hint) from None


def _parse_file_compaction(way: str, values: JsonFields) -> Compaction:
    if way not in COMPACTION_KINDS:
        raise DefinitionError(f"compaction: there is no {way!r}", hint=f"There are: {', '.join(COMPACTION_KINDS)}.")
    try:
        made: Compaction = getattr(Compaction, way)(**values)
    except TypeError as error:  # DefinitionError is a TypeError too, and has the better message
        if isinstance(error, DefinitionError):
            raise
        raise DefinitionError(f"compaction.{way}: {error}", hint=f"See Compaction.{way}.") from None
    return made


def _read_agent_file(path: Path) -> dict[str, Any]:
    """Parse the file at ``path``. Raises ``DefinitionError``."""
    read = _FILE_PARSERS.get(path.suffix.lower())
    if read is None:
        raise DefinitionError(f"{path}: an agent file ends in {', '.join(_FILE_PARSERS)}", hint="Rename it.")
    try:
        found = read(_read_file_text(path))
    except OSError as error:
        raise DefinitionError(f"{path} cannot be read: {error.strerror or error}", hint="Check its path.") from None
    except (ValueError, RecursionError) as error:
        raise DefinitionError(f"{path} cannot be read: {error}", hint="Correct it there.") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise DefinitionError(f"{path}: an agent file has one object", hint='For instance {"model": "openai:gpt-5"}.')
    if _has_more_values(found, MAX_AGENT_FILE_VALUES):
        raise DefinitionError(
            f"{path}: an agent file has at most {MAX_AGENT_FILE_VALUES:,} values", hint="Make it shorter."
        )
    return found


def _read_file_text(path: Path) -> str:
    """Read the text of a regular file: reading a pipe would block, and a device has no end."""
    if not S_ISREG(path.stat().st_mode):
        raise DefinitionError(f"{path} is no file", hint="Put the agent's file in its place.")
    with path.open("rb") as file:
        body = file.read(MAX_AGENT_FILE_BYTES + 1)
    if len(body) > MAX_AGENT_FILE_BYTES:
        raise DefinitionError(
            f"{path}: an agent file has at most {MAX_AGENT_FILE_BYTES:,} bytes", hint="Make it shorter."
        )
    return body.decode()


def _has_more_values(found: Any, most: int) -> bool:
    """Whether ``found`` has more than ``most`` values: a few lines of YAML can expand to more than fits in memory."""
    left = [found]
    while left and most:
        most -= 1
        value = left.pop()
        left += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return bool(left)


def _parse_yaml(text: str) -> Any:
    try:
        yaml: Any = import_module("yaml")
    except ImportError:
        raise RuntimeSetupError(
            "a YAML file needs the package pyyaml", hint='pip install "perdure[yaml]"; or write it as JSON or TOML.'
        ) from None
    try:
        for node in _iterate_yaml_mappings(yaml, yaml.compose(text, yaml.SafeLoader)):
            _check_unique_keys([str(key.value) for key, _ in node.value])
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _iterate_yaml_mappings(yaml: Any, root: Any) -> Iterator[Any]:
    """Iterate over the mappings, each once: an alias is the same node as its anchor."""
    left, seen = [root], set()
    while left:
        node = left.pop()
        if isinstance(node, yaml.CollectionNode) and id(node) not in seen:
            seen.add(id(node))
            if isinstance(node, yaml.MappingNode):
                yield node
            left += [one for pair in node.value for one in (pair if isinstance(pair, tuple) else [pair])]


def _parse_json_file(text: str) -> Any:
    def fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _check_unique_keys([name for name, _ in pairs])
        return dict(pairs)

    return json.loads(text, object_pairs_hook=fields)


def _check_unique_keys(names: list[str]) -> None:
    if twin := next((name for name, often in Counter(names).items() if often > 1), None):
        raise ValueError(f"{twin!r:.100} stands there twice")


_FILE_PARSERS: dict[str, Callable[[str], Any]] = {
    ".json": _parse_json_file,
    ".toml": tomllib.loads,
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
}
AGENT_FILE_SUFFIXES = tuple(_FILE_PARSERS)
"""File name suffixes of agent files."""
