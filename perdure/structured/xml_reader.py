"""XML that :mod:`.xml` wrote, or that a model wrote into its template, as plain JSON again.

A reader of its own: it knows from the schema what it looks for, so a stray ``<`` or ``&`` in a model's text is text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .shape import KINDS, Shape
from .xml import ENTRY, ITEM

_TAG = re.compile(
    r"""<(?P<close>/?)(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)"""
    r"""(?P<said>(?:\s+[A-Za-z_-]+\s*=\s*(?:"[^"]*"|'[^']*'))*)\s*(?P<empty>/?)>"""
)
_SAID = re.compile(r"""([A-Za-z_-]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_REFERENCE = re.compile(r"&(?:(lt|gt|amp|quot|apos)|#(\d{1,7})|#x([0-9a-fA-F]{1,6}));")
_NAMED = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}


@dataclass(slots=True)
class _Node:
    name: str
    said: dict[str, str]
    start: int
    """Where its content begins; ``end`` is where that ends."""
    end: int = -1
    children: list[_Node] = field(default_factory=list)


def from_xml(text: str, schema: Mapping[str, Any] | None = None, root: str = "input") -> Any:
    """The plain JSON of an element that ``to_xml`` wrote. Raises ``ValueError`` where there is none."""
    nodes = [node for node in _parse(text) if node.name == root]
    if len(nodes) != 1:
        raise ValueError(f"the text is not one <{root}> element")
    return _Reader(text, exact=True).value(nodes[0], Shape.of(schema or {}))


def filled_in(text: str, schema: Mapping[str, Any], root: str) -> Any:
    """What a model wrote into the template of ``schema``: the last element ``root``, else its elements alone, where all
    are there that have to be. None where ``text`` has neither."""
    nodes, shape, reader = _parse(text), Shape.of(schema), _Reader(text, exact=False)
    roots = [node for node in _walk(nodes) if node.name == root]
    if roots:
        return reader.value(roots[-1], shape)
    names = {node.name for node in nodes}
    required = set(schema.get("required", ()))
    known = names & set(schema.get("properties", {}))
    if not known or not required <= names:
        return None
    kept = [node for node in nodes if node.name in known]
    return reader.value(_Node(root, {}, 0, len(text), kept), shape)


def _walk(nodes: list[_Node]) -> list[_Node]:
    return [found for node in nodes for found in (node, *_walk(node.children))]


def _parse(text: str) -> list[_Node]:
    """The elements of ``text``. A tag that nothing closes, or opens, is text."""
    top = _Node("", {}, 0)
    stack = [top]
    waiting: Counter[str] = Counter()  # what is open, by name: else each tag that nothing opened looks at all of it
    for tag in _TAG.finditer(text):
        name = tag["name"]
        if not tag["close"]:
            said = {key: _unescaped(one or other) for key, one, other in _SAID.findall(tag["said"])}
            stack.append(_Node(name, said, tag.end()))
            if tag["empty"]:
                _close(stack, len(stack) - 1, tag.end())
            else:
                waiting[name] += 1
            continue
        if waiting[name]:
            opened = next(at for at in range(len(stack) - 1, 0, -1) if stack[at].name == name)
            waiting.subtract(node.name for node in stack[opened:])
            _close(stack, opened, tag.start())
    for node in stack[1:]:  # never closed: what is in it stands for itself
        top.children += node.children
    return top.children


def _close(stack: list[_Node], at: int, end: int) -> None:
    """Close the element at ``at``; those behind it were never closed."""
    node = stack[at]
    for unclosed in stack[at + 1 :]:
        node.children += unclosed.children
    del stack[at:]
    node.end = end
    stack[-1].children.append(node)


def _unescaped(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        name, decimal, hexadecimal = found.groups()
        if name:
            return _NAMED[name]
        number = int(decimal) if decimal else int(hexadecimal, 16)
        return chr(number) if number <= 0x10FFFF and not 0xD800 <= number <= 0xDFFF else found[0]

    return _REFERENCE.sub(character, text)


class _Reader:
    """``exact`` takes what is there as it is; else it is read as a model may have meant it."""

    def __init__(self, text: str, *, exact: bool) -> None:
        self._text = text
        self._exact = exact

    def value(self, node: _Node, shape: Shape) -> Any:
        """What ``node`` says, as far as it can be read; a text where it cannot."""
        match self._kind(node, shape):
            case "null":
                return None
            case "object":
                return self._object(node, shape)
            case "array":
                return self._array(node, shape)
            case "number":
                return self._json(node, int | float)
            case "boolean":
                return self._json(node, bool)
            case _:
                return self._string(node)

    def _kind(self, node: _Node, shape: Shape) -> str:
        said = node.said.get("type", "")
        said = "number" if said == "integer" else said
        if said in (KINDS if self._exact else shape.kinds):
            return said
        if self._exact:
            return shape.default() or "string"
        return self._meant(node, shape)

    def _meant(self, node: _Node, shape: Shape) -> str:
        text, kinds = self._string(node), shape.kinds
        if not text and "null" in kinds:
            return "null"
        if "array" in kinds and any(child.name == ITEM for child in node.children):
            return "array"
        if "object" in kinds and node.children:
            return "object"
        if (default := shape.default()) is not None:
            return default
        return next((kind for kind in ("number", "boolean") if kind in kinds), "string")

    def _object(self, node: _Node, shape: Shape) -> Any:
        if not node.children and not self._exact and (text := self._string(node)):
            return _loaded(text, dict)
        found: dict[str, list[_Node]] = {}
        for child in node.children:
            found.setdefault(_key(child), []).append(child)
        return {key: self._one(nodes, shape.child(key)) for key, nodes in found.items()}

    def _one(self, nodes: list[_Node], shape: Shape) -> Any:
        """A model may write an element once for each item of a list."""
        if len(nodes) > 1 and "array" in shape.kinds and not any(node.children for node in nodes if _lists(node)):
            return [self.value(node, shape.item(index)) for index, node in enumerate(nodes)]
        return self.value(nodes[-1], shape)

    def _array(self, node: _Node, shape: Shape) -> Any:
        if not node.children and not self._exact and (text := self._string(node)):
            return _loaded(text, list)
        return [self.value(child, shape.item(index)) for index, child in enumerate(node.children)]

    def _json(self, node: _Node, kind: Any) -> Any:
        text = self._string(node).strip()
        try:
            found = json.loads(text.lower() if kind is bool else text)
        except ValueError:
            return text
        return found if isinstance(found, kind) else text

    def _string(self, node: _Node) -> str:
        """All that stands in it, also what looks like elements."""
        text = _unescaped(self._text[node.start : node.end])
        if node.said.get("encoding") == "json":
            decoded = _loaded(text, str)
            return decoded if isinstance(decoded, str) else text
        return text if self._exact else text.strip()


def _key(node: _Node) -> str:
    if node.name == ENTRY and "json-key" in node.said:
        return str(_loaded(node.said["json-key"], str))
    return node.said.get("key", node.name) if node.name == ENTRY else node.name


def _lists(node: _Node) -> bool:
    return any(child.name == ITEM for child in node.children)


def _loaded(text: str, kind: type) -> Any:
    """The JSON of ``text`` where it is of that ``kind``, else ``text``."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, kind) else text
