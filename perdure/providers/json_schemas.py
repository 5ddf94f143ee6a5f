"""JSON Schemas of tools, made valid and closed: the steps that all wire formats have in common.

A schema comes from an MCP server, a client or an author, in any draft. :func:`repair_schema` makes it one of draft
2020-12, :func:`resolve_references` leaves only references to ``$defs``, and :func:`fold_root` makes the root one object
without combinators. What cannot be kept as a keyword goes into the description, for the model to read; the tool's owner
checks the arguments against the whole schema. A schema in which nothing is wrong stays as it is, key by key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

Schema = dict[str, Any]

SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose value maps names to schemas."""
SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SCHEMA_VALUES = (
    *("items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains", "propertyNames"),
    *("unevaluatedItems", "unevaluatedProperties", "contentSchema"),
)
SAME_OBJECT = frozenset(("anyOf", "oneOf", "allOf", "not", "if", "then", "else", "dependentSchemas"))
"""Keywords whose schemas speak of the same value as the schema that they stand in."""
_NOTE_CHARS = 4000
"""Most characters of a keyword that is told in the description."""


def describe_keyword(name: str, value: object) -> str:
    """``name: value`` for a description."""
    try:
        text = value if isinstance(value, str) and name == "format" else json.dumps(value, ensure_ascii=False)
    except (RecursionError, ValueError):
        text = "…"
    return f"{name}: {text if len(text) <= _NOTE_CHARS else text[:_NOTE_CHARS] + '…'}"


def add_notes(schema: Schema, notes: Sequence[str]) -> Schema:
    """``schema`` with ``notes`` behind its description."""
    if notes:
        schema["description"] = " ".join(filter(None, (schema.get("description", ""), f"({'; '.join(notes)})")))
    return schema


def map_subschemas(schema: Mapping[str, Any], change: Callable[[Any], Any]) -> Schema:
    """A copy of ``schema`` with each schema directly in it changed, in the same order."""
    copy: Schema = {}
    for key, value in schema.items():
        if key in SCHEMA_MAPS and isinstance(value, Mapping):
            copy[key] = {name: change(inner) for name, inner in value.items()}
        elif key in SCHEMA_LISTS and isinstance(value, list):
            copy[key] = [change(inner) for inner in value]
        elif key in SCHEMA_VALUES:
            copy[key] = change(value)
        else:
            copy[key] = value
    return copy


def iter_subschemas(schema: Mapping[str, Any]) -> Iterator[Any]:
    """The schemas directly in ``schema``."""
    for key, value in schema.items():
        if key in SCHEMA_MAPS and isinstance(value, Mapping):
            yield from value.values()
        elif key in SCHEMA_LISTS and isinstance(value, list):
            yield from value
        elif key in SCHEMA_VALUES:
            yield value


def cut_levels(schema: Any, levels: int) -> Any:
    """``schema`` with at most ``levels`` schemas in each other: a deeper one becomes a text in the description."""
    if not isinstance(schema, Mapping):
        return schema
    if levels > 1:
        return map_subschemas(schema, lambda inner: cut_levels(inner, levels - 1))
    cut = {key: value for key, value in schema.items() if not _has_subschemas(key, value)}
    return add_notes(cut, [describe_keyword(key, value) for key, value in schema.items() if key not in cut])


def _has_subschemas(key: str, value: Any) -> bool:
    return any(isinstance(inner, Mapping) for inner in iter_subschemas({key: value}))


# ---
# A schema of draft 2020-12. https://json-schema.org/draft/2020-12/json-schema-validation; older drafts, OpenAPI and
# slips of servers are rewritten. What each keyword must be:


class _MisfitError(Exception):
    """A keyword's value is not what the keyword takes."""


TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_TYPE_NAMES: dict[str, str] = {
    **{name: name for name in TYPES},
    **dict.fromkeys(("str", "text", "date", "datetime", "date-time", "time", "file", "uuid", "enum"), "string"),
    **dict.fromkeys(("int", "int32", "int64", "long"), "integer"),
    **dict.fromkeys(("float", "double", "decimal"), "number"),
    **dict.fromkeys(("dict", "map", "struct"), "object"),
    **dict.fromkeys(("list", "tuple", "set"), "array"),
    "bool": "boolean",
    "none": "null",
}
"""Names of types that servers write, in lower case."""
_ANY_TYPES = ("any", "unknown", "mixed", "*")


def _fix_type(value: Any) -> Any:
    if isinstance(value, str) and value in TYPES:
        return value
    if isinstance(value, str) and value.lower() in _TYPE_NAMES:
        return _TYPE_NAMES[value.lower()]
    if isinstance(value, str) and value.lower() in _ANY_TYPES:
        return None
    if isinstance(value, list) and value and all(isinstance(name, str) for name in value):
        names = list(dict.fromkeys(map(_fix_type, value)))
        return None if None in names else names
    raise _MisfitError


def _fix_text(value: Any) -> str:
    if isinstance(value, bool | list | dict):
        raise _MisfitError
    return value if isinstance(value, str) else str(value)


def _fix_anchor(value: Any) -> str | None:
    return value if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][-A-Za-z0-9._]*", value) else None


def _fix_id(value: Any) -> str | None:
    return value if isinstance(value, str) and "#" not in value.removesuffix("#") else None


def _fix_count(value: Any) -> int:
    number = _fix_number(value)
    if number < 0 or number != int(number):
        raise _MisfitError
    return value if value == number and not isinstance(value, str) else int(number)


def _fix_number(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise _MisfitError from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _MisfitError
    return value


def _fix_positive(value: Any) -> Any:
    if (number := _fix_number(value)) <= 0:
        raise _MisfitError
    return number


def _fix_flag(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise _MisfitError
    return value


def _fix_names(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise _MisfitError
    return value if len(set(value)) == len(value) else list(dict.fromkeys(value))


def _fix_name_lists(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise _MisfitError
    return {key: _fix_names(names) for key, names in value.items()}


def _fix_enum(value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise _MisfitError
    return value


def _fix_examples(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _fix_schema(value: Any) -> Any:
    if isinstance(value, Mapping):
        return repair_schema(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TYPE_NAMES:
        return {"type": _TYPE_NAMES[value.lower()]}
    raise _MisfitError


def _fix_schema_list(value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise _MisfitError
    return [_fix_schema(inner) for inner in value]


def _fix_schema_map(value: Any) -> Schema:
    if value == []:  # what PHP makes of an empty object
        return {}
    if not isinstance(value, Mapping):
        raise _MisfitError
    fixed: Schema = {}
    for name, inner in value.items():
        try:
            fixed[name] = {} if inner is None else _fix_schema(inner)
        except _MisfitError:
            continue
        if isinstance(inner, str) and name == "type":
            del fixed[name]  # a keyword in the wrong place
    return fixed


_SHAPES: dict[str, Callable[[Any], Any]] = {
    "type": _fix_type,
    "enum": _fix_enum,
    "examples": _fix_examples,
    "required": _fix_names,
    "dependentRequired": _fix_name_lists,
    "multipleOf": _fix_positive,
    **dict.fromkeys(("title", "description", "$comment", "format", "pattern", "$ref", "$schema"), _fix_text),
    **dict.fromkeys(("$dynamicRef", "contentEncoding", "contentMediaType"), _fix_text),
    **dict.fromkeys(("$anchor", "$dynamicAnchor"), _fix_anchor),
    "$id": _fix_id,
    "$vocabulary": lambda _: None,
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _fix_number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _fix_count),
    **dict.fromkeys(("minContains", "maxContains"), _fix_count),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _fix_flag),
    **dict.fromkeys(SCHEMA_MAPS, _fix_schema_map),
    **dict.fromkeys(SCHEMA_LISTS, _fix_schema_list),
    **dict.fromkeys(SCHEMA_VALUES, _fix_schema),
}


def repair_schema(schema: Mapping[str, Any]) -> Schema:
    """``schema`` as one of draft 2020-12, in the same order. It is not too deep for recursion."""
    repaired: Schema = {}
    notes: list[str] = []
    for key, value in _modernize(schema).items():
        if value is None and key in _SHAPES:
            continue
        try:
            fixed = _SHAPES[key](value) if key in _SHAPES else value
        except _MisfitError:
            notes.append(describe_keyword(key, value))
            continue
        if fixed is not None or value is None:
            repaired[key] = fixed
    return add_notes(repaired, notes)


def _modernize(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rewrite what older drafts say in another way."""
    changed: Schema = dict(schema)
    if isinstance(items := changed.get("items"), list):  # until 2019-09: a tuple, and additionalItems behind it
        changed = {("prefixItems" if key == "items" else key): value for key, value in changed.items()}
        rest = changed.pop("additionalItems", None)
        changed = {key: value for key, value in changed.items() if key != "prefixItems" or items}
        if rest is not None:
            changed["items"] = rest
    for bound, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(changed.get(bound), bool) and changed.pop(bound) and limit in changed:  # draft 4
            changed[bound] = changed.pop(limit)
    if isinstance(anchor := changed.get("$id"), str) and anchor.startswith("#"):  # until draft 7
        changed.setdefault("$anchor", changed.pop("$id").removeprefix("#"))
    if "$recursiveRef" in changed and "$ref" not in changed:
        changed["$ref"] = changed.pop("$recursiveRef")
    properties = changed.get("properties")
    flags = {
        name: inner["required"]
        for name, inner in (properties.items() if isinstance(properties, Mapping) else ())
        if isinstance(inner, Mapping) and isinstance(inner.get("required"), bool)
    }
    if flags and isinstance(properties, Mapping):  # draft 3: in the property
        changed["properties"] = {
            name: {key: value for key, value in inner.items() if key != "required"} if name in flags else inner
            for name, inner in properties.items()
        }
        listed = changed.get("required")
        required = [*(listed if isinstance(listed, list) else ()), *(name for name, flag in flags.items() if flag)]
        if required:
            changed["required"] = required
    return changed


# ---
# References: only to a definition of the root, which exists.


def resolve_references(schema: Schema) -> Schema:
    """``schema`` in which each ``$ref`` is ``#`` or names a definition of the root. Another local target becomes a
    definition; a reference to elsewhere, or to itself, becomes a text."""
    if not _has_reference(schema):
        return schema
    return _ReferenceResolver(schema).resolve()


def _has_reference(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return False
    return "$ref" in schema or "$dynamicRef" in schema or any(map(_has_reference, iter_subschemas(schema)))


class _ReferenceResolver:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._definitions: Schema = {}
        self._names: dict[str, str] = {}
        """Names of the definitions that are made, by reference."""
        self._waiting: list[tuple[str, Any]] = []
        self._anchors: Schema = {}
        self._collect_anchors(root)

    def resolve(self) -> Schema:
        resolved: Schema = self._rewrite(self._root)
        while self._waiting:
            name, target = self._waiting.pop(0)
            self._definitions[name] = self._rewrite(target)
        if self._definitions:
            resolved["$defs"] = {**resolved.get("$defs", {}), **self._definitions}
        return resolved

    def _collect_anchors(self, schema: Any) -> None:
        if isinstance(schema, Mapping):
            for key in ("$anchor", "$dynamicAnchor", "$id", "id"):
                if isinstance(name := schema.get(key), str) and name.lstrip("#"):
                    self._anchors.setdefault(name if name.startswith("#") or "id" in key else f"#{name}", schema)
            for inner in iter_subschemas(schema):
                self._collect_anchors(inner)

    def _rewrite(self, schema: Any) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        rewritten = map_subschemas(schema, self._rewrite)
        rewritten.pop("$id", None)  # which would be the base of references inside
        if "$dynamicRef" in rewritten and "$ref" not in rewritten:
            rewritten["$ref"] = rewritten.pop("$dynamicRef")
        if "$ref" in rewritten:
            reference = self._find_definition(rewritten["$ref"])
            if reference is None:
                return add_notes(rewritten, [describe_keyword("schema", rewritten.pop("$ref"))])
            rewritten["$ref"] = reference
        return rewritten

    def _find_definition(self, reference: str) -> str | None:
        """The reference to write; None if there is nothing that it names."""
        own = self._root.get("$id", self._root.get("id"))
        if isinstance(own, str) and own.rstrip("#") and reference.startswith(own.rstrip("#")):
            reference = reference[len(own.rstrip("#")) :] or "#"
        if reference in ("#", "#/"):
            return "#"
        target = self._anchors.get(reference, self._get_target(reference))
        if not isinstance(target, Mapping | bool) or self._is_loop(reference, target):
            return None
        parts = reference.split("/")
        if len(parts) == 3 and parts[1] in ("$defs", "definitions"):
            return reference
        if reference not in self._names:
            name = re.sub(r"[^A-Za-z0-9_]+", "_", unquote(reference)).strip("_") or "schema"
            while name in self._definitions or name in self._root.get("$defs", {}):
                name += "_"
            self._names[reference] = name
            self._definitions[name] = {}
            self._waiting.append((name, target))
        return f"#/$defs/{self._names[reference]}"

    def _get_target(self, reference: str) -> Any:
        """What a JSON pointer names in the root; None if it names nothing."""
        if not reference.startswith("#/"):
            return None
        value: Any = self._root
        for part in unquote(reference[2:]).split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, Mapping):
                value = value.get(key)
            elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            else:
                return None
        return value

    def _is_loop(self, reference: str, target: Any) -> bool:
        """Whether a chain of bare references ends at none."""
        seen = {reference}
        while isinstance(target, Mapping) and isinstance(target.get("$ref"), str):
            if target["$ref"] in seen:
                return True
            seen.add(target["$ref"])
            if target["$ref"] in ("#", "#/"):
                return "$ref" in self._root
            target = self._anchors.get(target["$ref"], self._get_target(target["$ref"]))
        return False


def get_definition(root: Mapping[str, Any], reference: str) -> Any:
    """The schema that a resolved reference names."""
    if reference == "#":
        return root
    _, keyword, name = reference.split("/")
    name = unquote(name).replace("~1", "/").replace("~0", "~")
    return root.get(keyword, {}).get(name)


# ---
# The root: one object without combinators.


_ROOT_ANNOTATIONS = frozenset(("title", "description", "$schema", "$id", "$comment", "$defs", "definitions", "type"))
_FOLDED_BRANCHES = ("$ref", "allOf", "anyOf", "oneOf")
_FOLDED = frozenset(("properties", "required", "additionalProperties"))
_MAX_FOLD_LEVELS, _MAX_FOLDS = 16, 1000
"""Most combinators and references in each other at the root, and in all: a reference can stand in each branch."""
_MAX_NOTES = 20
"""Most of them that are told in words."""
_MAX_VARIANTS = 64
"""Most schemas of one field in the alternatives of the root."""


def fold_root(root: Schema, refused: frozenset[str]) -> tuple[Schema, list[str]]:
    """``root`` (resolved) without ``$ref`` and the ``refused`` keywords, and what only words can say of them.

    Of ``allOf`` all fields and requirements are kept. Of ``anyOf`` and ``oneOf`` all fields, and the requirements that
    all alternatives have; arguments that fit ``root`` fit the result.
    """
    if "$ref" not in root and not refused & root.keys():
        return root, []
    folder = _Folder(root, refused)
    folded = folder.fold(root, 0)
    definitions: Schema = {key: root[key] for key in ("$defs", "definitions") if key in root}
    notes = list(dict.fromkeys(folder.notes))
    return {**folded, **definitions}, notes[:_MAX_NOTES] + (["…"] if len(notes) > _MAX_NOTES else [])


class _Folder:
    def __init__(self, root: Schema, refused: frozenset[str]) -> None:
        self._root, self._refused = root, refused
        self._folds = 0
        self.notes: list[str] = []

    def fold(self, schema: Mapping[str, Any], depth: int) -> Schema:
        """``schema``, which speaks of the root's value, as one object."""
        self._folds += 1
        inner = self._refused | {"$ref"}
        folded: Schema = {key: value for key, value in schema.items() if key not in inner}
        for key in (*_FOLDED_BRANCHES, *sorted(inner.difference(_FOLDED_BRANCHES))):
            value: Any = schema.get(key)
            if key not in schema or (key == "$ref" and value == "#"):
                continue
            if key == "enum" or key == "const":
                _add_value_fields(folded, [value] if key == "const" else value)
            is_branch = key in _FOLDED_BRANCHES
            if not is_branch or depth >= _MAX_FOLD_LEVELS or self._folds >= _MAX_FOLDS:
                self.notes.append(describe_keyword("one of" if key == "enum" else key, value))
                continue
            self._fold_branches(folded, key, [get_definition(self._root, value)] if key == "$ref" else value, depth)
        return folded

    def _fold_branches(self, folded: Schema, key: str, branches: Sequence[Any], depth: int) -> None:
        objects = [self.fold(branch, depth + 1) if isinstance(branch, Mapping) else {} for branch in branches]
        if key in ("anyOf", "oneOf"):
            objects = [branch for branch in objects if _is_object(branch)] or [{}]
            if len(objects) > 1 or len(branches) > 1:
                self.notes.append(_describe_alternatives(key, objects))
            _merge_alternatives(folded, objects)
            return
        for branch in objects:
            self.notes += _merge_object(folded, branch)


def _is_object(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type", "object")
    return kind == "object" or (isinstance(kind, list) and "object" in kind)


def _add_value_fields(folded: Schema, values: Sequence[Any]) -> None:
    """The fields of objects of which one must be given."""
    properties = folded.setdefault("properties", {})
    for name in dict.fromkeys(name for value in values if isinstance(value, Mapping) for name in value):
        properties.setdefault(name, {})


def _merge_object(folded: Schema, branch: Mapping[str, Any]) -> list[str]:
    """Add all that ``branch`` says to ``folded``; what cannot be added, in words."""
    notes = []
    before = set(folded.get("properties", {}))
    folded["properties"] = properties = dict(folded.get("properties", {}))
    for name, inner in branch.get("properties", {}).items():
        present = properties.get(name, inner)
        properties[name] = inner if present in (inner, {}, True) else {"allOf": [present, inner]}
    if required := [*folded.get("required", ()), *branch.get("required", ())]:
        folded["required"] = list(dict.fromkeys(required))
    for key, value in branch.items():
        if key in _FOLDED or key in _ROOT_ANNOTATIONS:
            if key in ("description", "title"):
                folded.setdefault(key, value)
        elif folded.setdefault(key, value) != value:
            notes.append(describe_keyword(key, value))
    if branch.get("additionalProperties", True) is not True:
        if "additionalProperties" not in folded and before <= set(branch.get("properties", {})):
            folded["additionalProperties"] = branch["additionalProperties"]
        else:
            notes.append(describe_keyword("additionalProperties", branch["additionalProperties"]))
    return notes


def _merge_alternatives(folded: Schema, objects: Sequence[Mapping[str, Any]]) -> None:
    """Add the fields that one of ``objects`` may have, and the requirements of all of them."""
    variants: dict[str, list[Any]] = {}
    for branch in objects:
        for name, inner in branch.get("properties", {}).items():
            known = variants.setdefault(name, [])
            if len(known) <= _MAX_VARIANTS and inner not in known:
                known.append(inner)
    properties = dict(folded.get("properties", {}))
    for name, schemas in variants.items():
        if properties.get(name, {}) in ({}, True):
            # An alternative without the field takes any value of it; a model is shown what the others say.
            properties[name] = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        if len(schemas) > _MAX_VARIANTS:
            properties[name] = {}
    folded["properties"] = properties
    shared = [name for name in objects[0].get("required", ()) if all(name in b.get("required", ()) for b in objects)]
    if required := [*folded.get("required", ()), *shared]:
        folded["required"] = list(dict.fromkeys(required))


def _describe_alternatives(key: str, objects: Sequence[Mapping[str, Any]]) -> str:
    """What each alternative asks for: its requirements, and of its fields those that alternatives say differently."""
    first: Schema = {}
    different: set[str] = set()
    for branch in objects:
        for name, inner in branch.get("properties", {}).items():
            if first.setdefault(name, inner) != inner:
                different.add(name)
    shown = []
    for branch in objects:
        own: Schema = {name: value for name, value in branch.items() if name not in ("properties", "type")}
        if fields := branch.get("properties"):
            own["properties"] = {name: inner if name in different else {} for name, inner in fields.items()}
        shown.append(own)
    return describe_keyword("exactly one of these" if key == "oneOf" else "at least one of these", shown)
