"""Values as XML for a model to read, templates for a model to fill in, and a parser for both.

The parser is guided by the JSON Schema, so a stray ``<`` or ``&`` in a model's text is read as text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# ---
# JSON Schemas by place in a value: which kinds of JSON are allowed there, and the schemas of its children.


JSON_KINDS = frozenset(["string", "number", "boolean", "null", "object", "array"])
_MAX_REFERENCE_DEPTH = 20
"""Most references and alternatives followed from one place."""


def get_json_kind(value: Any) -> str:
    """Return the kind of a plain JSON value."""
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


class ValueSchema:
    """The schema of one place. ``branches`` are the alternatives; without any, every value is allowed."""

    def __init__(self, branches: Iterable[Mapping[str, Any]], defs: Mapping[str, Any]) -> None:
        self._defs = defs
        self.branches = tuple(inner for branch in branches for inner in _iterate_alternatives(branch, defs))
        kinds = [_get_schema_kinds(branch) for branch in self.branches]
        self.kinds: frozenset[str] = frozenset().union(*kinds) if kinds else JSON_KINDS
        """Kinds of JSON that are allowed here."""

    @classmethod
    def from_schema(cls, schema: Mapping[str, Any]) -> ValueSchema:
        """Build the root of ``schema``."""
        return cls([schema], schema.get("$defs", {}))

    def get_child(self, name: str) -> ValueSchema:
        """Return the schema of property ``name`` of an object."""
        named = [branch["properties"][name] for branch in self.branches if name in branch.get("properties", {})]
        if not named:
            others = [branch.get("additionalProperties") for branch in self.branches]
            named = [schema for schema in others if isinstance(schema, Mapping)]
        return ValueSchema(map(_as_schema_mapping, named), self._defs)

    def get_item(self, index: int) -> ValueSchema:
        """Return the schema of item ``index`` of an array."""
        schemas = []
        for branch in self.branches:
            first = branch.get("prefixItems", ())
            if index < len(first):
                schemas.append(first[index])
            elif "items" in branch:
                schemas.append(branch["items"])
        return ValueSchema(map(_as_schema_mapping, schemas), self._defs)

    def get_default_kind(self) -> str | None:
        """Return the kind of a value without a ``type`` attribute; None if the schema leaves it open."""
        kinds = self.kinds - {"null"}
        if len(kinds) == 1:
            return next(iter(kinds))
        return "string" if "string" in kinds else None


def _as_schema_mapping(schema: Any) -> Mapping[str, Any]:
    return schema if isinstance(schema, Mapping) else {}


def _iterate_alternatives(
    schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int = 0
) -> Iterator[Mapping[str, Any]]:
    if depth > _MAX_REFERENCE_DEPTH:
        yield {}
    elif isinstance(reference := schema.get("$ref"), str):
        yield from _iterate_alternatives(_as_schema_mapping(defs.get(reference.rpartition("/")[2])), defs, depth + 1)
    elif any(isinstance(schema.get(key), list) for key in ("anyOf", "oneOf", "allOf")):
        for key in ("anyOf", "oneOf", "allOf"):
            for alternative in schema.get(key, ()):
                yield from _iterate_alternatives(_as_schema_mapping(alternative), defs, depth + 1)
    else:
        yield schema


def _get_schema_kinds(schema: Mapping[str, Any]) -> frozenset[str]:
    if "const" in schema:
        return frozenset([get_json_kind(schema["const"])])
    if isinstance(schema.get("enum"), list):
        return frozenset(map(get_json_kind, schema["enum"]))
    return frozenset("number" if name == "integer" else name for name in _list_types(schema, *JSON_KINDS))


def _list_types(schema: Mapping[str, Any], *default: str) -> Iterable[str]:
    declared = schema.get("type", default)
    return [declared] if isinstance(declared, str) else declared


def describe_schema_type(schema: Mapping[str, Any]) -> str:
    """Describe the type of ``schema``, one branch, in a word or two."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return " or ".join(json.dumps(value, ensure_ascii=False) for value in values)
    return " or ".join(_list_types(schema, "anything"))


# ---
# Values as XML, for a model to read; and the template of one, for a model to fill in.
#
# <input>
# <question>Why &lt;b&gt;?</question>
# <tags>
# <item>a</item>
# </tags>
# <limit type="null"/>
# </input>
#
# The attribute ``type`` is written only where the schema leaves the kind open. :func:`from_xml` reads it all back.


ITEM_ELEMENT, ENTRY_ELEMENT = "item", "entry"
"""Element of an array item; element of an object entry whose key is not a valid element name (attribute ``key``)."""
_ELEMENT_NAME_PATTERN = re.compile(r"(?!xml)[A-Za-z_][A-Za-z0-9_.-]*", re.IGNORECASE | re.ASCII)
_NON_XML_CHARACTER = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_TEXT_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"})
_ATTRIBUTE_ESCAPES = _TEXT_ESCAPES | str.maketrans({'"': "&quot;", "\n": "&#10;", "\t": "&#9;"})
_MAX_TEMPLATE_DEPTH = 6
"""Levels of a template; that of a recursive type would have no end."""


def to_xml(value: Any, schema: Mapping[str, Any] | None = None, root: str = "input") -> str:
    """Render ``value``, plain JSON of ``schema``, as an element ``root``."""
    return "\n".join(_write_element(root, "", value, ValueSchema.from_schema(schema or {}), ""))


def _write_element(name: str, attributes: str, value: Any, shape: ValueSchema, indent: str) -> Iterator[str]:
    kind = get_json_kind(value)
    if kind == "null":
        yield f'{indent}<{name}{attributes} type="null"/>'
        return
    if kind != shape.get_default_kind():
        attributes += f' type="{kind}"'
    if kind not in ("object", "array"):
        encoding, text = _encode_scalar(value)
        yield f"{indent}<{name}{attributes}{encoding}>{text}</{name}>"
        return
    if not value:
        yield f"{indent}<{name}{attributes}></{name}>"
        return
    yield f"{indent}<{name}{attributes}>"
    if kind == "object":
        for key, inner in value.items():
            yield from _write_element(*_encode_key(key), inner, shape.get_child(key), indent + "  ")
    else:
        for index, inner in enumerate(value):
            yield from _write_element(ITEM_ELEMENT, "", inner, shape.get_item(index), indent + "  ")
    yield f"{indent}</{name}>"


def _encode_key(key: str) -> tuple[str, str]:
    """Return the element of a key, and the attribute that holds the key if it is not a valid element name."""
    if _ELEMENT_NAME_PATTERN.fullmatch(key):
        return key, ""
    if _NON_XML_CHARACTER.search(key):
        return ENTRY_ELEMENT, f' json-key="{json.dumps(key).translate(_ATTRIBUTE_ESCAPES)}"'
    return ENTRY_ELEMENT, f' key="{key.translate(_ATTRIBUTE_ESCAPES)}"'


def _encode_scalar(value: Any) -> tuple[str, str]:
    if not isinstance(value, str):
        return "", json.dumps(value)
    if _NON_XML_CHARACTER.search(value):  # XML cannot hold such a character, not even escaped
        return ' encoding="json"', json.dumps(value).translate(_ATTRIBUTE_ESCAPES)
    return "", value.translate(_TEXT_ESCAPES)


def build_template(schema: Mapping[str, Any], root: str) -> str:
    """Build the template for a model: every element of ``schema``, with its description as attributes."""
    attributes, shape = _write_description_attributes(schema), ValueSchema.from_schema(schema)
    return "\n".join(_write_template_element(root, attributes, shape, "", _MAX_TEMPLATE_DEPTH))


def _write_template_element(name: str, attributes: str, shape: ValueSchema, indent: str, levels: int) -> Iterator[str]:
    inner: list[str] = []
    for branch in shape.branches if levels else ():
        if "properties" in branch:
            required = branch.get("required", ())
            for key, schema in branch["properties"].items():
                element, keyed = _encode_key(key)
                keyed += _write_description_attributes(schema, optional=key not in required)
                inner += _write_template_element(element, keyed, shape.get_child(key), indent + "  ", levels - 1)
        elif "items" in branch or "prefixItems" in branch:
            hint = ' description="once for each"'
            inner += _write_template_element(ITEM_ELEMENT, hint, shape.get_item(0), indent + "  ", levels - 1)
    kinds = " or ".join(dict.fromkeys(describe_schema_type(branch) for branch in shape.branches)) or "anything"
    opening = f'{indent}<{name} type="{kinds.translate(_ATTRIBUTE_ESCAPES)}"{attributes}>'
    if not inner:
        yield f"{opening}</{name}>"
        return
    yield opening
    yield from dict.fromkeys(inner) if len(shape.branches) > 1 else inner
    yield f"{indent}</{name}>"


def _write_description_attributes(schema: Any, *, optional: bool = False) -> str:
    description = schema.get("description") if isinstance(schema, Mapping) else None
    text = " ".join(str(description or "").split()).translate(_ATTRIBUTE_ESCAPES)
    return (f' description="{text}"' if description else "") + (' optional="true"' if optional else "")


_XML_TAG_PATTERN = re.compile(
    r"""<(?P<close>/?)(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)"""
    r"""(?P<attributes>(?:\s+[A-Za-z_-]+\s*=\s*(?:"[^"]*"|'[^']*'))*)\s*(?P<empty>/?)>"""
)
_XML_ATTRIBUTE_PATTERN = re.compile(r"""(?<![A-Za-z_-])([A-Za-z_-]++)\s*+=\s*+(?:"([^"]*)"|'([^']*)')""")
_CHARACTER_REFERENCE_PATTERN = re.compile(r"&(?:(lt|gt|amp|quot|apos)|#(\d{1,7})|#x([0-9a-fA-F]{1,6}));")
_NAMED_CHARACTERS = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}


@dataclass(slots=True)
class _XmlNode:
    name: str
    attributes: dict[str, str]
    start: int
    """Offset at which the content begins; ``end`` is where it ends."""
    end: int = -1
    children: list[_XmlNode] = field(default_factory=list)


def from_xml(text: str, schema: Mapping[str, Any] | None = None, root: str = "input") -> Any:
    """Parse an element that ``to_xml`` wrote into plain JSON. Raises ``ValueError`` if there is none."""
    nodes = [node for node in _parse_elements(text) if node.name == root]
    if len(nodes) != 1:
        raise ValueError(f"the text is not one <{root}> element")
    return _XmlReader(text, exact=True).read_value(nodes[0], ValueSchema.from_schema(schema or {}))


def parse_filled_template(text: str, schema: Mapping[str, Any], root: str) -> Any:
    """Parse what a model wrote into the template of ``schema``: the last element ``root``, else its child elements
    alone if all required ones are there. None if ``text`` has neither."""
    nodes, shape, reader = _parse_elements(text), ValueSchema.from_schema(schema), _XmlReader(text, exact=False)
    roots = [node for node in _flatten_nodes(nodes) if node.name == root]
    if roots:
        return reader.read_value(roots[-1], shape)
    names = {node.name for node in nodes}
    required = set(schema.get("required", ()))
    known = names & set(schema.get("properties", {}))
    if not known or not required <= names:
        return None
    kept = [node for node in nodes if node.name in known]
    return reader.read_value(_XmlNode(root, {}, 0, len(text), kept), shape)


def _flatten_nodes(nodes: list[_XmlNode]) -> list[_XmlNode]:
    return [inner for node in nodes for inner in (node, *_flatten_nodes(node.children))]


def _parse_elements(text: str) -> list[_XmlNode]:
    """Parse the elements of ``text``. An unmatched tag is text."""
    top = _XmlNode("", {}, 0)
    stack = [top]
    waiting: Counter[str] = Counter()  # open elements by name, so that unmatched end tags need no scan
    for tag in _XML_TAG_PATTERN.finditer(text):
        name = tag["name"]
        if not tag["close"]:
            pairs = _XML_ATTRIBUTE_PATTERN.findall(tag["attributes"])
            attributes = {key: _unescape_references(double or single) for key, double, single in pairs}
            stack.append(_XmlNode(name, attributes, tag.end()))
            if tag["empty"]:
                _close_element(stack, len(stack) - 1, tag.end())
            else:
                waiting[name] += 1
            continue
        if waiting[name]:
            opened = next(at for at in range(len(stack) - 1, 0, -1) if stack[at].name == name)
            waiting.subtract(node.name for node in stack[opened:])
            _close_element(stack, opened, tag.start())
    for node in stack[1:]:  # never closed: its children stand for themselves
        top.children += node.children
    return top.children


def _close_element(stack: list[_XmlNode], at: int, end: int) -> None:
    """Close the element at ``at``; those above it on the stack were never closed."""
    node = stack[at]
    for unclosed in stack[at + 1 :]:
        node.children += unclosed.children
    del stack[at:]
    node.end = end
    stack[-1].children.append(node)


def _unescape_references(text: str) -> str:
    def unescape(reference: re.Match[str]) -> str:
        name, decimal, hexadecimal = reference.groups()
        if name:
            return _NAMED_CHARACTERS[name]
        number = int(decimal) if decimal else int(hexadecimal, 16)
        return chr(number) if number <= 0x10FFFF and not 0xD800 <= number <= 0xDFFF else reference[0]

    return _CHARACTER_REFERENCE_PATTERN.sub(unescape, text)


class _XmlReader:
    """Converts elements to JSON. With ``exact`` as written, else as a model may have meant it."""

    def __init__(self, text: str, *, exact: bool) -> None:
        self._text = text
        self._exact = exact

    def read_value(self, node: _XmlNode, shape: ValueSchema) -> Any:
        """Read the value of ``node`` as far as possible; its text if it cannot be parsed."""
        match self._resolve_kind(node, shape):
            case "null":
                return None
            case "object" | "array" as kind if not node.children and not self._exact and self._read_string(node):
                return _load_json_of_kind(self._read_string(node), dict if kind == "object" else list)
            case "object":
                return self._read_object(node, shape)
            case "array":
                return [self.read_value(child, shape.get_item(index)) for index, child in enumerate(node.children)]
            case "number":
                return self._read_json_scalar(node, int | float)
            case "boolean":
                return self._read_json_scalar(node, bool)
            case _:
                return self._read_string(node)

    def _resolve_kind(self, node: _XmlNode, shape: ValueSchema) -> str:
        declared_kind = node.attributes.get("type", "")
        declared_kind = "number" if declared_kind == "integer" else declared_kind
        if declared_kind in (JSON_KINDS if self._exact else shape.kinds):
            return declared_kind
        if self._exact:
            return shape.get_default_kind() or "string"
        return self._guess_kind(node, shape)

    def _guess_kind(self, node: _XmlNode, shape: ValueSchema) -> str:
        text, kinds = self._read_string(node), shape.kinds
        if not text and "null" in kinds:
            return "null"
        if "array" in kinds and _has_item_elements(node):
            return "array"
        if "object" in kinds and node.children:
            return "object"
        if (default := shape.get_default_kind()) is not None:
            return default
        return next((kind for kind in ("number", "boolean") if kind in kinds), "string")

    def _read_object(self, node: _XmlNode, shape: ValueSchema) -> Any:
        nodes_by_key: dict[str, list[_XmlNode]] = {}
        for child in node.children:
            nodes_by_key.setdefault(_decode_key(child), []).append(child)
        return {key: self._read_property(nodes, shape.get_child(key)) for key, nodes in nodes_by_key.items()}

    def _read_property(self, nodes: list[_XmlNode], shape: ValueSchema) -> Any:
        """Read a property. A model may repeat its element once for each item of a list."""
        if len(nodes) > 1 and "array" in shape.kinds and not any(map(_has_item_elements, nodes)):
            return [self.read_value(node, shape.get_item(index)) for index, node in enumerate(nodes)]
        return self.read_value(nodes[-1], shape)

    def _read_json_scalar(self, node: _XmlNode, kind: Any) -> Any:
        text = self._read_string(node).strip()
        try:
            value = json.loads(text.lower() if kind is bool else text)
        except ValueError:
            return text
        return value if isinstance(value, kind) else text

    def _read_string(self, node: _XmlNode) -> str:
        """Return all of the content as text, also what looks like elements."""
        text = _unescape_references(self._text[node.start : node.end])
        if node.attributes.get("encoding") == "json":
            decoded = _load_json_of_kind(text, str)
            return decoded if isinstance(decoded, str) else text
        return text if self._exact else text.strip()


def _decode_key(node: _XmlNode) -> str:
    if node.name == ENTRY_ELEMENT and "json-key" in node.attributes:
        return str(_load_json_of_kind(node.attributes["json-key"], str))
    return node.attributes.get("key", node.name) if node.name == ENTRY_ELEMENT else node.name


def _has_item_elements(node: _XmlNode) -> bool:
    return any(child.name == ITEM_ELEMENT for child in node.children)


def _load_json_of_kind(text: str, kind: type) -> Any:
    """Parse ``text`` as JSON and return the value if it is of ``kind``, else ``text``."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, kind) else text
