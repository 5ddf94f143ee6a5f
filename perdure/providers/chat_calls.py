"""The tool calls of a streamed chat completion: which piece belongs to which call.

OpenAI sends an index with every piece, id and name with the first, and arguments as pieces of JSON text.
Others leave out the index or the id, give every call the index 0, repeat the name, or send the arguments as
an object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..types.messages import ToolCallPart, clean
from .encoding import clean_json, parse_arguments


@dataclass(slots=True)
class Slot:
    """A call under assembly."""

    index: int
    """Its place in the reply."""
    wire_index: int | None
    id: str = ""
    name: str = ""
    arguments: str = ""
    extra: Any = None
    """What the server keeps with the call, and wants back."""

    @property
    def complete(self) -> bool:
        """Its arguments are a JSON object, so that nothing more can belong to them."""
        try:
            return self.arguments.rstrip().endswith("}") and isinstance(json.loads(self.arguments), dict)
        except (ValueError, RecursionError):
            return False


class CallSlots:
    """The calls of one reply."""

    def __init__(self) -> None:
        self._slots: list[Slot] = []

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, entry: Mapping[str, Any]) -> tuple[Slot, str]:
        """Take one piece; the call that it belongs to, and the piece of arguments it adds."""
        function = entry.get("function")
        function = function if isinstance(function, dict) else entry
        call_id = clean(entry["id"]) if isinstance(entry.get("id"), str) else ""
        name = clean(function["name"]) if isinstance(function.get("name"), str) else ""
        arguments = _arguments(function.get("arguments"))
        index = entry.get("index") if isinstance(entry.get("index"), int) else None
        slot = self._find(index, call_id, name)
        slot.id = slot.id or call_id
        if name != slot.name and not slot.arguments:
            slot.name += name  # the first piece, or a name that itself comes in pieces
        slot.arguments += arguments
        if entry.get("extra_content") is not None:
            slot.extra = entry["extra_content"]
        return slot, arguments

    def _find(self, index: int | None, id: str, name: str) -> Slot:
        if index is None:
            # Without an index a known id says which call; else the piece goes on with the last one.
            candidates = [slot for slot in self._slots if id and slot.id == id] or self._slots[-1:]
        else:
            candidates = [slot for slot in self._slots if slot.wire_index == index]
        if candidates and not _begins(candidates[-1], id, name):
            return candidates[-1]
        slot = Slot(index=len(self._slots), wire_index=index)
        self._slots.append(slot)
        return slot

    def parts(self, origin: str = "", *, cut: bool = False) -> list[ToolCallPart]:
        """The calls, whole, in order.

        ``cut``: the reply was ended before it was complete, and calls that are not are left out: nobody asked for them.
        """
        parts = [_part(slot, origin) for slot in self._slots]
        if not cut:
            return parts
        begun = self._slots[-1].index if self._slots and not self._slots[-1].arguments.strip() else -1
        return [
            part for slot, part in zip(self._slots, parts, strict=True) if slot.index != begun and not part.malformed
        ]


def _begins(last: Slot, id: str, name: str) -> bool:
    """Whether a piece with ``id`` and ``name`` begins a call after ``last`` instead of going on with it."""
    if not name:
        # Ids alone do not tell: some servers make up a new one for every piece.
        return bool(id and last.id and id != last.id and last.complete)
    if id and last.id == id:
        return False
    if last.arguments:
        return last.complete
    return bool(id and last.id)


def _arguments(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _part(slot: Slot, origin: str) -> ToolCallPart:
    text = clean(slot.arguments)
    arguments = parse_arguments(text)
    opaque = None if slot.extra is None else {"extra_content": clean_json(slot.extra)}
    return ToolCallPart(
        id=slot.id,
        name=slot.name,
        arguments=arguments or {},
        malformed=text if arguments is None else None,
        provider=origin if opaque else None,
        opaque=opaque,
    )
