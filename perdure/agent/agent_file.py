"""Agents as data: a JSON, TOML or YAML file with a model, instructions, and tools by name; types from JSON Schemas."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from importlib import import_module
from operator import or_
from pathlib import Path
from stat import S_ISREG
from types import NoneType
from typing import Annotated, Any, Literal, NotRequired, TypeVar

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, ValidationError
from pydantic_core import SchemaError
from typing_extensions import TypedDict

from ..errors import DefinitionError
from ..ports.toolset import Toolset
from ..tools import Rule, Tool, Toolbox
from ..tools.approvals import parse_rule
from ..types.compaction import COMPACTION_KINDS, Compaction
from ..types.interface import FinishProtocol, OnLimit, StrictInput, Versioning
from ..types.limits import Limits
from ..types.validation_errors import describe_validation_error
from .spec import AgentSpec

# ---
# Types from a JSON Schema, for agents that are data. Only keywords that a model can be held to are supported.
#
# An object becomes a ``TypedDict``: its values are plain dictionaries.


_SCALAR_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "null": NoneType}
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
_NUMBER_KEYWORDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_TYPE_KEYWORDS: dict[str, set[str]] = {
    "string": {"minLength", "maxLength", "pattern"},
    "integer": _NUMBER_KEYWORDS,
    "number": _NUMBER_KEYWORDS,
    "boolean": set(),
    "null": set(),
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
}
_ALL_TYPE_KEYWORDS = set().union(*_TYPE_KEYWORDS.values())
_COMMON_KEYWORDS = {"type", "description", "title", "examples", "$schema"}
_MAX_SCHEMA_DEPTH = 20
_make_typed_dict: Any = TypedDict  # called with names that are known only at run time


def build_type_from_schema(schema: Any, where: str, depth: int = 0) -> Any:
    """Build a type that pydantic accepts and that the values of ``schema`` fit. ``where`` names it in errors.

    Raises ``DefinitionError`` that names the place and the keyword.
    """
    if not isinstance(schema, Mapping):
        why = f"a JSON Schema is an object, not {schema!r:.60}"
        raise DefinitionError(f"{where}: {why}", hint='For instance {"type": "string"}.')
    if depth > _MAX_SCHEMA_DEPTH:
        why = f"it is more than {_MAX_SCHEMA_DEPTH} levels deep"
        raise DefinitionError(f"{where}: {why}", hint="Make it flatter: models fill in flat ones better.")
    field_options = {"description": schema["description"]} if isinstance(schema.get("description"), str) else {}
    kind = schema.get("type")
    schema_type: Any
    if "enum" in schema or "const" in schema:
        schema_type = _build_literal_type(schema, where)
    elif isinstance(kind, list) and kind:
        members = [{**_select_type_keywords(schema, member), "type": member} for member in kind]
        schema_type = reduce(or_, (build_type_from_schema(member, where, depth) for member in members))
    else:
        kind = _check_keywords(schema, kind, where)
        constraints = {_FIELD_CONSTRAINTS[name]: schema[name] for name in schema if name in _FIELD_CONSTRAINTS}
        _check_constraints(where, list if kind == "array" else _SCALAR_TYPES.get(kind), constraints)
        field_options |= constraints
        if kind == "array":
            items: Any = build_type_from_schema(schema.get("items", {}), f"{where}.items", depth + 1)
            schema_type = list[items]
        else:
            schema_type = _build_object_type(schema, where, depth) if kind == "object" else _SCALAR_TYPES[kind]
    return Annotated[schema_type, Field(**field_options)] if field_options else schema_type


def _check_keywords(schema: Mapping[str, Any], kind: Any, where: str) -> str:
    """Return ``kind``, the type of ``schema``. Raises ``DefinitionError`` for types and keywords without support."""
    if kind is None and (unknown := sorted(schema.keys() - _COMMON_KEYWORDS - _ALL_TYPE_KEYWORDS)):
        raise DefinitionError(
            f"{where}: {unknown[0]!r} is not supported", hint="Give each value's type, and its items or properties."
        )
    if not isinstance(kind, str) or kind not in _TYPE_KEYWORDS:
        problem = f"{where}.type: {kind!r:.60} is not one of {', '.join(_TYPE_KEYWORDS)}, or a list of them"
        raise DefinitionError(problem, hint="Give the type of each value.")
    if unknown := sorted(schema.keys() - _COMMON_KEYWORDS - _TYPE_KEYWORDS[kind]):
        known = ", ".join(sorted(_COMMON_KEYWORDS | _TYPE_KEYWORDS[kind]))
        raise DefinitionError(
            f"{where}: {unknown[0]!r} of {kind} is not supported", hint=f"There is: {known}; and enum, const."
        )
    return kind


def _check_constraints(where: str, kind: Any, constraints: Mapping[str, Any]) -> None:
    """Raise ``DefinitionError`` for an invalid pattern and for a bound that is not a number."""
    if constraints:
        try:
            TypeAdapter(Annotated[kind, Field(**constraints)])
        except (SchemaError, TypeError) as error:
            why = str(error).strip().rpartition("\n")[2].strip()
            hint = "Bounds are numbers, and a pattern is a regular expression."
            raise DefinitionError(f"{where}: {why}", hint=hint) from None


def _build_object_type(schema: Mapping[str, Any], where: str, depth: int) -> Any:
    properties, required = schema.get("properties"), schema.get("required", ())
    if not isinstance(properties, Mapping) or not properties:
        hint = 'For instance {"properties": {"answer": {"type": "string"}}}.'
        raise DefinitionError(f"{where}: an object has properties", hint=hint)
    if schema.get("additionalProperties", False) is not False:
        hint = "List all properties."
        raise DefinitionError(f"{where}.additionalProperties: it can only be false", hint=hint)
    is_list = isinstance(required, Sequence) and not isinstance(required, str)
    if not is_list or not all(name in properties for name in required):
        why = f"{required!r:.60} is not a list of its properties"
        raise DefinitionError(f"{where}.required: {why}", hint="List their names.")
    fields: dict[str, Any] = {}
    for name, property_schema in properties.items():
        field_type = build_type_from_schema(property_schema, f"{where}.properties.{name}", depth + 1)
        fields[name] = field_type if name in required else NotRequired[field_type]
    title = schema.get("title")
    typed_dict = _make_typed_dict(title if isinstance(title, str) and title.isidentifier() else "Object", fields)
    typed_dict.__pydantic_config__ = ConfigDict(extra="forbid")
    return typed_dict


def _build_literal_type(schema: Mapping[str, Any], where: str) -> Any:
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    if not isinstance(values, list) or not values or not all(isinstance(v, str | int | bool | None) for v in values):
        why = "it lists texts, whole numbers, true, false or null"
        raise DefinitionError(f"{where}.enum: {why}", hint='For instance ["a", "b"].')
    return Literal[tuple(values)]


def _select_type_keywords(schema: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Return the keywords of ``schema`` that apply to type ``kind``."""
    others = _ALL_TYPE_KEYWORDS - _TYPE_KEYWORDS.get(kind, set()) if isinstance(kind, str) else set()
    return {name: value for name, value in schema.items() if name not in others | {"description", "title"}}


MAX_AGENT_FILE_BYTES = 1024 * 1024
MAX_AGENT_FILE_VALUES = 100_000
"""Most values in one file. A value that YAML aliases repeat counts each time."""

T = TypeVar("T")
SpecT = TypeVar("SpecT", bound=AgentSpec[Any, Any])
JsonFields = dict[str, JsonValue]


class AgentFields(StrictInput):
    """The fields of an agent file, as in ``Agent``; tools and toolsets are given by name."""

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
    versioning: Versioning | None = None
    client_tools: bool | None = None
    caller_overrides: tuple[str, ...] = ()
    caller_claims: tuple[str, ...] = ()
    internal: bool = False
    compaction: dict[str, JsonFields] = Field(default={})
    """As ``Compaction``, by kind: ``{"window": {"tokens": 100000}}``."""


def load_spec(
    source: str | Path | Mapping[str, Any],
    make: Callable[..., SpecT],
    *,
    tools: Iterable[Tool | Callable[..., Any]] = (),
    toolsets: Iterable[Toolset] = (),
) -> SpecT:
    """Load the agent that a file describes, as ``load_agent`` does. ``make`` is its class."""
    if isinstance(source, Mapping):
        where, values = "the agent", dict(source)
    else:
        path = Path(source)
        where, values = str(source), {"name": path.stem, **_read_agent_file(path)}
    try:
        fields = AgentFields.model_validate(values)
    except ValidationError as error:
        problems = describe_validation_error(error, "it", max_problems=10)
        problems = problems.replace("a valid tuple", "a list").replace("a valid dictionary", "an object")
        known = ", ".join(AgentFields.model_fields)
        raise DefinitionError(f"{where}: {problems[:1000]}", hint=f"An agent has: {known}.") from None
    try:
        return make(**_build_arguments(fields, Toolbox(tools), {toolset.name: toolset for toolset in toolsets}))
    except DefinitionError as error:
        raise type(error)(f"{where}: {error.message}", hint=error.hint) from error


def _build_arguments(fields: AgentFields, tools: Toolbox, toolsets: Mapping[str, Toolset]) -> dict[str, Any]:
    """Build the arguments of the agent. Raises ``DefinitionError``."""
    arguments: dict[str, Any] = {name: value for name, value in fields if value is not None}
    for field in ("input", "output", "context"):
        if field in arguments:
            arguments[field] = build_type_from_schema(arguments[field], field)
    tools_by_name = {tool.name: tool for tool in tools}
    arguments["tools"] = [_get_by_name("tools", name, tools_by_name) for name in fields.tools]
    arguments["toolsets"] = [_get_by_name("toolsets", name, toolsets) for name in fields.toolsets]
    arguments["limits"] = None if fields.limits is None else Limits.model_validate(fields.limits)
    arguments["approvals"] = [_parse_file_rule(place, values) for place, values in enumerate(fields.approvals)]
    arguments["compaction"] = [_parse_file_compaction(kind, values) for kind, values in fields.compaction.items()]
    return arguments


def _get_by_name(field: str, name: str, known: Mapping[str, T]) -> T:
    if name not in known:
        raise DefinitionError(
            f"{field}: there is no {name!r} (there is: {', '.join(sorted(known)) or 'none'})",
            hint=f"Give it to load_agent(…, {field}=[…]); for `perdure worker`, as a list {field} in its file.",
        )
    return known[name]


def _parse_file_rule(place: int, values: JsonFields) -> Rule:
    try:
        return parse_rule(values)
    except DefinitionError as error:
        raise DefinitionError(f"approvals.{place}: {error.message}", hint=error.hint) from None


def _parse_file_compaction(kind: str, values: JsonFields) -> Compaction:
    if kind not in COMPACTION_KINDS:
        raise DefinitionError(f"compaction: there is no {kind!r}", hint=f"There are: {', '.join(COMPACTION_KINDS)}.")
    compaction: Compaction = COMPACTION_KINDS[kind].model_validate(values)
    return compaction


def _read_agent_file(path: Path) -> dict[str, Any]:
    """Parse the file at ``path``. Raises ``DefinitionError``."""
    parse = _FILE_PARSERS.get(path.suffix.lower())
    if parse is None:
        raise DefinitionError(f"{path}: an agent file ends in {', '.join(_FILE_PARSERS)}", hint="Rename it.")
    try:
        fields = parse(_read_file_text(path))
    except OSError as error:
        raise DefinitionError(f"{path} cannot be read: {error.strerror or error}", hint="Check its path.") from None
    except (ValueError, RecursionError) as error:
        raise DefinitionError(f"{path} cannot be read: {error}", hint="Correct the file.") from None
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise DefinitionError(f"{path}: an agent file has one object", hint='For instance {"model": "openai:gpt-5"}.')
    if _has_more_values(fields, MAX_AGENT_FILE_VALUES):
        why = f"an agent file has at most {MAX_AGENT_FILE_VALUES:,} values"
        raise DefinitionError(f"{path}: {why}", hint="Make it shorter.")
    return fields


def _read_file_text(path: Path) -> str:
    """Read the text of a regular file: reading a pipe would block, and a device has no end."""
    if not S_ISREG(path.stat().st_mode):
        raise DefinitionError(f"{path} is not a regular file", hint="Put the agent's file in its place.")
    with path.open("rb") as file:
        body = file.read(MAX_AGENT_FILE_BYTES + 1)
    if len(body) > MAX_AGENT_FILE_BYTES:
        why = f"an agent file has at most {MAX_AGENT_FILE_BYTES:,} bytes"
        raise DefinitionError(f"{path}: {why}", hint="Make it shorter.")
    return body.decode()


def _has_more_values(value: Any, limit: int) -> bool:
    """Whether ``value`` has more than ``limit`` values: a few lines of YAML can expand to more than fits in memory."""
    left = [value]
    while left and limit:
        limit -= 1
        value = left.pop()
        if isinstance(value, dict | list):
            left += value.values() if isinstance(value, dict) else value
    return bool(left)


def _parse_yaml(text: str) -> Any:
    try:
        yaml: Any = import_module("yaml")
    except ImportError:
        from .._installation import build_missing_extra_error

        error = build_missing_extra_error("an agent file in YAML", "yaml", module="pyyaml")
        error.hint = f"{error.hint}; or write it as JSON or TOML."
        raise error from None
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
                left += [child for pair in node.value for child in pair]
            else:
                left += node.value


def _parse_json_file(text: str) -> Any:
    def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _check_unique_keys([name for name, _ in pairs])
        return dict(pairs)

    return json.loads(text, object_pairs_hook=build_object)


def _check_unique_keys(names: list[str]) -> None:
    if twin := next((name for name, count in Counter(names).items() if count > 1), None):
        raise ValueError(f"the key {twin!r:.100} occurs twice")


_FILE_PARSERS: dict[str, Callable[[str], Any]] = {
    ".json": _parse_json_file,
    ".toml": tomllib.loads,
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
}
AGENT_FILE_SUFFIXES = tuple(_FILE_PARSERS)
"""File name suffixes of agent files."""
