"""Values as XML, for a model to read; and the template of one, for a model to fill in.

    <input>
      <question>Why &lt;b&gt;?</question>
      <tags>
        <item>a</item>
      </tags>
      <limit type="null"/>
    </input>

What kind a value is (``type``) is only said where the schema leaves that open. :mod:`.xml_reader` reads it all back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .shape import Shape, kind_of, shown

ITEM, ENTRY = "item", "entry"
"""Elements of an array; elements of an object whose key is no name of an element, which stands in ``key``."""
_NAME = re.compile(r"(?!xml)[A-Za-z_][A-Za-z0-9_.-]*", re.IGNORECASE | re.ASCII)
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NESTED = 6
"""Levels of a template; a type that holds itself would have no end."""


def to_xml(value: Any, schema: Mapping[str, Any] | None = None, root: str = "input") -> str:
    """``value``, plain JSON of ``schema``, as an element ``root``."""
    return "\n".join(_element(root, "", value, Shape.of(schema or {}), ""))


def _element(name: str, said: str, value: Any, shape: Shape, indent: str) -> Iterator[str]:
    kind = kind_of(value)
    if kind == "null":
        yield f'{indent}<{name}{said} type="null"/>'
        return
    if kind != shape.default():
        said += f' type="{kind}"'
    if kind not in ("object", "array"):
        attribute, text = _text(value)
        yield f"{indent}<{name}{said}{attribute}>{text}</{name}>"
        return
    if not value:
        yield f"{indent}<{name}{said}></{name}>"
        return
    yield f"{indent}<{name}{said}>"
    if kind == "object":
        for key, inner in value.items():
            yield from _element(*_named(key), inner, shape.child(key), indent + "  ")
    else:
        for index, inner in enumerate(value):
            yield from _element(ITEM, "", inner, shape.item(index), indent + "  ")
    yield f"{indent}</{name}>"


def _named(key: str) -> tuple[str, str]:
    """The element of a key, and the attribute that has it where it is no name."""
    if _NAME.fullmatch(key):
        return key, ""
    if _NO_XML.search(key):
        return ENTRY, f' json-key="{_escaped(json.dumps(key))}"'
    return ENTRY, f' key="{_escaped(key)}"'


def _text(value: Any) -> tuple[str, str]:
    if not isinstance(value, str):
        return "", json.dumps(value)
    if _NO_XML.search(value):  # XML has no way to say such a character, not even escaped
        return ' encoding="json"', _escaped(json.dumps(value))
    return "", value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\r", "&#13;")


def _escaped(value: str) -> str:
    for character, reference in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        value = value.replace(character, reference)
    return value.replace("\r", "&#13;").replace("\n", "&#10;").replace("\t", "&#9;")


def template(schema: Mapping[str, Any], root: str) -> str:
    """What a model is to fill in: every element of ``schema``, with what is said of it as attributes."""
    return "\n".join(_blank(root, _describe(schema), Shape.of(schema), "", _NESTED))


def _blank(name: str, said: str, shape: Shape, indent: str, levels: int) -> Iterator[str]:
    inner: list[str] = []
    for branch in shape.branches if levels else ():
        if "properties" in branch:
            required = branch.get("required", ())
            for key, schema in branch["properties"].items():
                element, keyed = _named(key)
                about = _describe(schema, optional=key not in required)
                inner += _blank(element, keyed + about, shape.child(key), indent + "  ", levels - 1)
        elif "items" in branch or "prefixItems" in branch:
            about = ' description="once for each"'
            inner += _blank(ITEM, about, shape.item(0), indent + "  ", levels - 1)
    kinds = " or ".join(dict.fromkeys(shown(branch) for branch in shape.branches)) or "anything"
    opening = f'{indent}<{name} type="{_escaped(kinds)}"{said}>'
    if not inner:
        yield f"{opening}</{name}>"
        return
    yield opening
    yield from dict.fromkeys(inner) if len(shape.branches) > 1 else inner
    yield f"{indent}</{name}>"


def _describe(schema: Any, *, optional: bool = False) -> str:
    description = schema.get("description") if isinstance(schema, Mapping) else None
    said = f' description="{_escaped(" ".join(str(description).split()))}"' if description else ""
    return said + (' optional="true"' if optional else "")
