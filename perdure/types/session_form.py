"""The flat form of a conversation: a list of dictionaries, as generic sessions have it. Goes both ways without loss.

    {"type": "system" | "user" | "assistant" | "thinking", "content": "…"}
    {"type": "tool_call", "id": "…", "name": "…", "input": {…}}
    {"type": "tool_result", "id": "…", "output": "…"}

``role`` may stand for ``type``. Entries of thinking, assistant and tool_call that follow each other are one message,
and so are tool_results; every system and user entry is one of its own.

What this form has no place for stands under keys of its own, and only where there is something to say: ``file`` (in
place of the content), ``files`` and ``is_error`` of a result, ``name`` of one whose call is not there, ``malformed``,
``blob``, ``provider`` and ``opaque``; ``data``, of a thinking that only its provider understands. ``message`` stands in
the first entry of a message that has more to it: its ``id``, ``by``, ``model``, ``finish_reason``, ``usage``,
``cost_usd``; ``role``, where the entry does not say it; ``parts``, the number of its entries, where it is another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..errors import InvalidInputError
from .messages import FilePart, Message, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from .validation_errors import get_first_problem

_ENTRY_GROUPS = {
    "system": "alone",
    "user": "alone",
    "assistant": "reply",
    "thinking": "reply",
    "tool_call": "reply",
    "tool_result": "results",
}
_GROUP_ROLES = {"alone": "user", "reply": "assistant", "results": "tool"}
_MESSAGE_FIELDS = ("id", "by", "model", "finish_reason", "usage", "cost_usd")
_FIELD_NAMES = {"tool_call": {"input": "arguments"}, "tool_result": {"id": "call_id", "output": "content"}}
"""What fields of parts are called here, where it is another name."""
_part_adapter: TypeAdapter[Part] = TypeAdapter(Part)


def to_session(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """``messages`` in the flat form, plain JSON. :func:`from_session` gives the same messages again."""
    entries: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for message in messages:
        said = [_encode_entry(part, message.role, names) for part in message.parts]
        about: dict[str, Any] = message.model_dump(mode="json", include=set(_MESSAGE_FIELDS), exclude_defaults=True)
        nothing = {"type": "assistant" if message.role == "tool" else message.role, "content": ""}
        first: dict[str, Any] = said[0] if said else nothing
        groups = [_ENTRY_GROUPS[entry["type"]] for entry in said]
        if not said or len(set(groups)) > 1 or (groups[0] == "alone" and len(groups) > 1):
            about["parts"] = len(said)
        if _get_entry_role(first) != message.role:
            about["role"] = message.role
        joins = bool(entries) and groups[:1] != ["alone"] and groups[:1] == [_ENTRY_GROUPS[entries[-1]["type"]]]
        if about or joins:
            first["message"] = about
        entries += said or [first]
    return entries


def from_session(session: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages of a session in the flat form. Raises ``InvalidInputError`` that names the wrong entry."""
    entries = [_parse_entry(number, entry, len(session) - number) for number, entry in enumerate(session)]
    messages: list[Message] = []
    names: dict[str, str] = {}
    at = 0
    while at < len(entries):
        first = entries[at]
        about = dict(first.pop("message", None) or {})
        count = about.pop("parts", None)
        end = at + (_count_message_entries(entries[at:]) if count is None else count)
        role = about.pop("role", _get_entry_role(first))
        try:
            parts = tuple(_decode_entry(entry, names, number) for number, entry in enumerate(entries[at:end], at))
            messages.append(Message.model_validate({"role": role, "parts": parts, **about}))
        except ValidationError as error:
            raise _build_entry_error(at, error) from None
        at = max(end, at + 1)
    return messages


def _get_entry_role(entry: Mapping[str, Any]) -> str:
    return "system" if entry["type"] == "system" else _GROUP_ROLES[_ENTRY_GROUPS[entry["type"]]]


def _count_message_entries(entries: Sequence[Mapping[str, Any]]) -> int:
    """How many entries are one message, where the first does not say."""
    group = _ENTRY_GROUPS[entries[0]["type"]]
    count = 1
    while (
        group != "alone"
        and count < len(entries)
        and _ENTRY_GROUPS[entries[count]["type"]] == group
        and "message" not in entries[count]
    ):
        count += 1
    return count


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
            return {"type": "tool_call", "name": name, "id": id, "input": arguments} | _dump_part(
                part, "id", "name", "arguments"
            )
        case ToolResultPart(call_id=id, content=output):
            more = _dump_part(part, "call_id", "content")
            if names.get(id) == part.name:
                del more["name"]
            return {"type": "tool_result", "id": id, "output": output, **more}


def _dump_part(part: Part, *without: str) -> dict[str, Any]:
    return part.model_dump(mode="json", exclude_defaults=True, exclude={"type", *without})


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


_ENTRY_KEYS = {
    "text": {"content", "file", "blob", "provider", "opaque"},
    "thinking": {"content", "provider", "opaque", "data"},
    "tool_call": {"id", "name", "input", "malformed", "provider", "opaque"},
    "tool_result": {"id", "output", "name", "blob", "is_error", "files"},
}


def _parse_entry(number: int, entry: Any, left: int) -> dict[str, Any]:
    """A copy with ``type`` in the place of ``role``; what it has is what there is."""
    if not isinstance(entry, Mapping):
        raise InvalidInputError(f"session[{number}]: an entry is a dictionary, not {type(entry).__name__}")
    plain = {"type" if name == "role" else name: value for name, value in entry.items()}
    kind = plain.get("type")
    if kind not in _ENTRY_GROUPS:
        raise InvalidInputError(f"session[{number}]: type is one of {', '.join(_ENTRY_GROUPS)}, not {kind!r:.100}")
    known = _ENTRY_KEYS.get(str(kind), _ENTRY_KEYS["text"])
    if unknown := [name for name in plain if name not in known | {"type", "message"}]:
        raise InvalidInputError(
            f"session[{number}]: {kind} has no key {unknown[0]!r:.100}", hint=f"It may have {', '.join(sorted(known))}."
        )
    about = plain.get("message")
    if about is not None:
        _check_entry_message(number, about, left)
    return plain


def _check_entry_message(number: int, about: Any, left: int) -> None:
    known = {*_MESSAGE_FIELDS, "role", "parts"}
    if not isinstance(about, Mapping) or not about.keys() <= known:
        raise InvalidInputError(f"session[{number}].message: a dictionary with {', '.join(sorted(known))}")
    parts = about.get("parts", 1)
    if type(parts) is not int or not 0 <= parts <= left:
        raise InvalidInputError(f"session[{number}].message.parts: a number of entries that follow, not {parts!r:.100}")


def _build_entry_error(number: int, error: ValidationError) -> InvalidInputError:
    place, why = get_first_problem(error)  # it begins with the kind of a part, or is a field of the message
    kind = str(place[0]) if place else "entry"
    ours = {"text": "content", **{name: here for here, name in _FIELD_NAMES.get(kind, {}).items()}}
    shown = [kind] if kind not in ("text", "file") else []
    where = ".".join((*shown, *(ours.get(str(step), str(step)) for step in place[1:])))
    return InvalidInputError(f"session[{number}]: {where}: {why}")
