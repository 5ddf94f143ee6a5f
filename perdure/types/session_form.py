"""The flat form of a conversation: a list of dictionaries, as in generic sessions. Converts both ways without loss.

    {"type": "system" | "user" | "assistant" | "thinking", "content": "…"}
    {"type": "tool_call", "id": "…", "name": "…", "input": {…}}
    {"type": "tool_result", "id": "…", "output": "…"}

``role`` may replace ``type``. Consecutive entries of thinking, assistant and tool_call are one message, and so are
consecutive tool_results; every system and user entry is a message of its own.

Further keys are present only if they have a value: ``file`` (in place of the content), ``files``, ``is_error`` and
``given_by`` of a result, ``name`` of a result without its call, ``malformed``, ``blob``, ``provider`` and ``opaque``;
``data`` of thinking that only its provider understands. The first entry of a message may have ``message``, with its
``id``, ``by``, ``model``, ``finish_reason``, ``usage``, ``cost_usd``; ``role``, if it differs from that of the entry;
``parts``, the number of its entries, if it differs from the rule above.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ..errors import InvalidInputError
from .messages import FilePart, Message, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from .validation_errors import get_first_problem

_TEXT_KEYS = {"content", "file", "blob", "provider", "opaque"}
_ENTRY_TYPES: dict[str, tuple[str, set[str]]] = {
    "system": ("system", _TEXT_KEYS),
    "user": ("user", _TEXT_KEYS),
    "assistant": ("assistant", _TEXT_KEYS),
    "thinking": ("assistant", {"content", "provider", "opaque", "data"}),
    "tool_call": ("assistant", {"id", "name", "input", "malformed", "provider", "opaque"}),
    "tool_result": ("tool", {"id", "output", "name", "blob", "is_error", "files", "given_by"}),
}
"""Role and keys of the entries of each type."""
_JOINED_ROLES = ("assistant", "tool")
"""Roles of which several entries are one message."""
_MESSAGE_FIELDS = ("id", "by", "model", "finish_reason", "usage", "cost_usd")
_FIELD_NAMES = {"tool_call": {"input": "arguments"}, "tool_result": {"id": "call_id", "output": "content"}}
"""Names of fields of parts that differ in this form."""
_part_adapter: TypeAdapter[Part] = TypeAdapter(Part, config=ConfigDict(defer_build=True))


def to_session(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Convert ``messages`` into the flat form, plain JSON. :func:`from_session` restores the same messages."""
    entries: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for message in messages:
        message_entries = [_encode_entry(part, message.role, names) for part in message.parts]
        roles = list(map(_get_entry_role, message_entries))
        fields: dict[str, Any] = message.model_dump(mode="json", include=set(_MESSAGE_FIELDS), exclude_defaults=True)
        if not roles or len(set(roles)) > 1 or (roles[0] not in _JOINED_ROLES and len(roles) > 1):
            fields["parts"] = len(roles)
        placeholder = {"type": "assistant" if message.role == "tool" else message.role, "content": ""}
        message_entries = message_entries or [placeholder]
        if (first_role := _get_entry_role(message_entries[0])) != message.role:
            fields["role"] = message.role
        would_join = roles and entries and first_role in _JOINED_ROLES and first_role == _get_entry_role(entries[-1])
        if fields or would_join:
            message_entries[0]["message"] = fields
        entries += message_entries
    return entries


def from_session(session: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Convert a session in the flat form into messages. Raises ``InvalidInputError`` that names the invalid entry."""
    entries = [_parse_entry(number, entry, len(session) - number) for number, entry in enumerate(session)]
    messages: list[Message] = []
    names: dict[str, str] = {}
    position = 0
    while position < len(entries):
        fields = dict(entries[position].pop("message", None) or {})
        count = fields.pop("parts", None)
        end = _find_message_end(entries, position) if count is None else position + count
        role = fields.pop("role", _get_entry_role(entries[position]))
        try:
            numbered = enumerate(entries[position:end], position)
            parts = tuple(_decode_entry(entry, names, number) for number, entry in numbered)
            messages.append(Message.model_validate({"role": role, "parts": parts, **fields}))
        except ValidationError as error:
            raise _build_entry_error(position, error) from None
        position = max(end, position + 1)
    return messages


def _get_entry_role(entry: Mapping[str, Any]) -> str:
    return _ENTRY_TYPES[entry["type"]][0]


def _find_message_end(entries: Sequence[Mapping[str, Any]], start: int) -> int:
    """Return the end of the message whose first entry, at ``start``, does not give the number of its entries."""
    role, end = _get_entry_role(entries[start]), start + 1
    if role in _JOINED_ROLES:
        while end < len(entries) and _get_entry_role(entries[end]) == role and "message" not in entries[end]:
            end += 1
    return end


def _encode_entry(part: Part, role: str, names: dict[str, str]) -> dict[str, Any]:
    text = role if role != "tool" else "user"
    match part:
        case FilePart():
            return {"type": text, "content": "", "file": _dump_part(part)}
        case OpaquePart():
            return {"type": "thinking", "content": "", **_dump_part(part)}
        case TextPart(text=content):
            return {"type": text, "content": content, **_dump_part(part, "text")}
        case ThinkingPart(text=content):
            return {"type": "thinking", "content": content, **_dump_part(part, "text")}
        case ToolCallPart(id=id, name=name, arguments=arguments):
            names[id] = name
            more = _dump_part(part, "id", "name", "arguments")
            return {"type": "tool_call", "name": name, "id": id, "input": arguments, **more}
        case ToolResultPart(call_id=id, content=output):
            more = _dump_part(part, "call_id", "content")
            if names.get(id) == part.name:
                del more["name"]
            return {"type": "tool_result", "id": id, "output": output, **more}


def _dump_part(part: Part, *excluded: str) -> dict[str, Any]:
    return part.model_dump(mode="json", exclude_defaults=True, exclude={"type", *excluded})


def _decode_entry(entry: dict[str, Any], names: dict[str, str], number: int) -> Part:
    kind = entry["type"]
    fields = {_FIELD_NAMES.get(kind, {}).get(name, name): value for name, value in entry.items()}
    if kind in ("tool_call", "tool_result"):
        if kind == "tool_call":
            names[str(fields.get("id"))] = str(fields.get("name"))
        else:
            fields.setdefault("name", names.get(str(fields.get("call_id")), ""))
            if not isinstance(fields.get("content", ""), str):
                fields["content"] = json.dumps(fields["content"], ensure_ascii=False)
    elif "file" in fields:
        if not isinstance(fields["file"], Mapping):
            raise InvalidInputError(f"session[{number}]: file: a dictionary, as FilePart has it")
        fields = {**fields["file"], "type": "file"}
    elif "data" in fields:
        fields["type"] = "opaque"
        fields.pop("content", None)
    else:
        fields["type"] = "thinking" if kind == "thinking" else "text"
        fields["text"] = fields.pop("content", "")
    try:
        return _part_adapter.validate_python(fields)
    except ValidationError as error:
        raise _build_entry_error(number, error) from None


def _parse_entry(number: int, entry: Any, left: int) -> dict[str, Any]:
    """Return a copy with ``type`` in place of ``role``. Raises ``InvalidInputError`` for unknown keys."""
    if not isinstance(entry, Mapping):
        raise InvalidInputError(f"session[{number}]: an entry is a dictionary, not {type(entry).__name__}")
    plain = {"type" if name == "role" else name: value for name, value in entry.items()}
    kind = plain.get("type")
    if not isinstance(kind, str) or kind not in _ENTRY_TYPES:
        raise InvalidInputError(f"session[{number}]: type is one of {', '.join(_ENTRY_TYPES)}, not {kind!r:.100}")
    known = _ENTRY_TYPES[kind][1]
    if unknown := [name for name in plain if name not in known | {"type", "message"}]:
        raise InvalidInputError(
            f"session[{number}]: {kind} has no key {unknown[0]!r:.100}", hint=f"It may have {', '.join(sorted(known))}."
        )
    if plain.get("message") is not None:
        _check_message_fields(number, plain["message"], left)
    return plain


def _check_message_fields(number: int, fields: Any, left: int) -> None:
    known = {*_MESSAGE_FIELDS, "role", "parts"}
    if not isinstance(fields, Mapping) or not fields.keys() <= known:
        raise InvalidInputError(f"session[{number}].message: a dictionary with {', '.join(sorted(known))}")
    parts = fields.get("parts", 1)
    if type(parts) is not int or not 0 <= parts <= left:
        raise InvalidInputError(f"session[{number}].message.parts: a number of entries that follow, not {parts!r:.100}")


def _build_entry_error(number: int, error: ValidationError) -> InvalidInputError:
    path, why = get_first_problem(error)  # it begins with the kind of a part, or is a field of the message
    kind = str(path[0]) if path else "entry"
    entry_names = {"text": "content", **{name: entry_name for entry_name, name in _FIELD_NAMES.get(kind, {}).items()}}
    shown = [kind] if kind not in ("text", "file") else []
    where = ".".join((*shown, *(entry_names.get(str(step), str(step)) for step in path[1:])))
    return InvalidInputError(f"session[{number}]: {where}: {why}")
