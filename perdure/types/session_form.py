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
from .validation_errors import first_problem

_GROUPS = {
    "system": "alone",
    "user": "alone",
    "assistant": "reply",
    "thinking": "reply",
    "tool_call": "reply",
    "tool_result": "results",
}
_ROLES = {"alone": "user", "reply": "assistant", "results": "tool"}
_FACTS = ("id", "by", "model", "finish_reason", "usage", "cost_usd")
_NAMES = {"tool_call": {"input": "arguments"}, "tool_result": {"id": "call_id", "output": "content"}}
"""What fields of parts are called here, where it is another name."""
_part: TypeAdapter[Part] = TypeAdapter(Part)


def to_session(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """``messages`` in the flat form, plain JSON. :func:`from_session` gives the same messages again."""
    entries: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for message in messages:
        said = [_entry(part, message.role, names) for part in message.parts]
        about: dict[str, Any] = message.model_dump(mode="json", include=set(_FACTS), exclude_defaults=True)
        nothing = {"type": "assistant" if message.role == "tool" else message.role, "content": ""}
        first: dict[str, Any] = said[0] if said else nothing
        groups = [_GROUPS[entry["type"]] for entry in said]
        if not said or len(set(groups)) > 1 or (groups[0] == "alone" and len(groups) > 1):
            about["parts"] = len(said)
        if _role(first) != message.role:
            about["role"] = message.role
        joins = bool(entries) and groups[:1] != ["alone"] and groups[:1] == [_GROUPS[entries[-1]["type"]]]
        if about or joins:
            first["message"] = about
        entries += said or [first]
    return entries


def from_session(session: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages of a session in the flat form. Raises ``InvalidInputError`` that names the wrong entry."""
    entries = [_checked(number, entry, len(session) - number) for number, entry in enumerate(session)]
    messages: list[Message] = []
    names: dict[str, str] = {}
    at = 0
    while at < len(entries):
        first = entries[at]
        about = dict(first.pop("message", None) or {})
        count = about.pop("parts", None)
        end = at + (_natural(entries[at:]) if count is None else count)
        role = about.pop("role", _role(first))
        try:
            parts = tuple(_part_of(entry, names, number) for number, entry in enumerate(entries[at:end], at))
            messages.append(Message.model_validate({"role": role, "parts": parts, **about}))
        except ValidationError as error:
            raise _wrong(at, error) from None
        at = max(end, at + 1)
    return messages


def _role(entry: Mapping[str, Any]) -> str:
    return "system" if entry["type"] == "system" else _ROLES[_GROUPS[entry["type"]]]


def _natural(entries: Sequence[Mapping[str, Any]]) -> int:
    """How many entries are one message, where the first does not say."""
    group = _GROUPS[entries[0]["type"]]
    count = 1
    while (
        group != "alone"
        and count < len(entries)
        and _GROUPS[entries[count]["type"]] == group
        and "message" not in entries[count]
    ):
        count += 1
    return count


def _entry(part: Part, role: str, names: dict[str, str]) -> dict[str, Any]:
    text = role if role != "tool" else "user"
    match part:
        case FilePart():
            return {"type": text, "content": "", "file": _plain(part)}
        case OpaquePart():
            return {"type": "thinking", "content": "", **_plain(part)}
        case TextPart(text=content):
            return {"type": text, "content": content, **_plain(part, "text")}
        case ThinkingPart(text=content):
            return {"type": "thinking", "content": content, **_plain(part, "text")}
        case ToolCallPart(id=id, name=name, arguments=arguments):
            names[id] = name
            return {"type": "tool_call", "name": name, "id": id, "input": arguments} | _plain(
                part, "id", "name", "arguments"
            )
        case ToolResultPart(call_id=id, content=output):
            more = _plain(part, "call_id", "content")
            if names.get(id) == part.name:
                del more["name"]
            return {"type": "tool_result", "id": id, "output": output, **more}


def _plain(part: Part, *without: str) -> dict[str, Any]:
    return part.model_dump(mode="json", exclude_defaults=True, exclude={"type", *without})


def _part_of(entry: dict[str, Any], names: dict[str, str], number: int) -> Part:
    kind = entry["type"]
    fields = {_NAMES.get(kind, {}).get(name, name): value for name, value in entry.items()}
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
        return _part.validate_python(fields)
    except ValidationError as error:
        raise _wrong(number, error) from None


_KEYS = {
    "text": {"content", "file", "blob", "provider", "opaque"},
    "thinking": {"content", "provider", "opaque", "data"},
    "tool_call": {"id", "name", "input", "malformed", "provider", "opaque"},
    "tool_result": {"id", "output", "name", "blob", "is_error", "files"},
}


def _checked(number: int, entry: Any, left: int) -> dict[str, Any]:
    """A copy with ``type`` in the place of ``role``; what it has is what there is."""
    if not isinstance(entry, Mapping):
        raise InvalidInputError(f"session[{number}]: an entry is a dictionary, not {type(entry).__name__}")
    plain = {"type" if name == "role" else name: value for name, value in entry.items()}
    kind = plain.get("type")
    if kind not in _GROUPS:
        raise InvalidInputError(f"session[{number}]: type is one of {', '.join(_GROUPS)}, not {kind!r:.100}")
    known = _KEYS.get(str(kind), _KEYS["text"])
    if unknown := [name for name in plain if name not in known | {"type", "message"}]:
        raise InvalidInputError(
            f"session[{number}]: {kind} has no key {unknown[0]!r:.100}", hint=f"It may have {', '.join(sorted(known))}."
        )
    about = plain.get("message")
    if about is not None:
        _check_about(number, about, left)
    return plain


def _check_about(number: int, about: Any, left: int) -> None:
    known = {*_FACTS, "role", "parts"}
    if not isinstance(about, Mapping) or not about.keys() <= known:
        raise InvalidInputError(f"session[{number}].message: a dictionary with {', '.join(sorted(known))}")
    parts = about.get("parts", 1)
    if type(parts) is not int or not 0 <= parts <= left:
        raise InvalidInputError(f"session[{number}].message.parts: a number of entries that follow, not {parts!r:.100}")


def _wrong(number: int, error: ValidationError) -> InvalidInputError:
    place, why = first_problem(error)  # it begins with the kind of a part, or is a field of the message
    kind = str(place[0]) if place else "entry"
    ours = {"text": "content", **{name: here for here, name in _NAMES.get(kind, {}).items()}}
    shown = [kind] if kind not in ("text", "file") else []
    where = ".".join((*shown, *(ours.get(str(step), str(step)) for step in place[1:])))
    return InvalidInputError(f"session[{number}]: {where}: {why}")
