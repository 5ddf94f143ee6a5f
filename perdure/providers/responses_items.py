"""Items of the Responses format as parts of a message: what a reply and an import have in common.

What only the API understands of an item stays on its parts as opaque data: ``{"model": …, "item": …}`` for reasoning
and for items that we do not know (a search, a run of the code interpreter), ``{"model": …, "id": …, …}`` for texts and
calls. ``model`` is the name that was asked for: reasoning is of no use to another one, see ``responses_request``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..types import messages
from ..types.messages import OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart
from .encoding import clean_json, json_text, parse_arguments
from .plain import string

CONTENT_KEYS = ("annotations",)
MESSAGE_KEYS = ("id", "status", "phase")
CALL_KEYS = ("id", "status", "namespace", "caller")


def read_item(item: Mapping[str, Any], *, origin: str, model: str | None) -> list[Part]:
    """The parts of an item that a model wrote."""
    # In the order that the store gives them back in: a message has the same bytes in every worker.
    item = json.loads(json.dumps(clean_json(dict(item)), sort_keys=True))
    mark: dict[str, Any] = {"model": model} if model else {}
    match item.get("type"):
        case "message":
            return list(_texts(item, origin, mark))
        case "reasoning":
            return [ThinkingPart(text=thinking(item), provider=origin, opaque=mark | {"item": item})]
        case "function_call":
            return [_call(item, origin, mark)]
        case _:
            # Also of a type that we do not know: the API takes back what it gave.
            return [OpaquePart(provider=origin, data=mark | {"item": item})]


def thinking(item: Mapping[str, Any]) -> str:
    """What people may read of a reasoning item: its summary, or the reasoning itself, which few servers give."""
    return "\n\n".join(_said(item.get("summary"))) or "".join(_said(item.get("content")))


def _said(parts: object) -> list[str]:
    entries = parts if isinstance(parts, list) else []
    return [entry["text"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("text"), str)]


def _texts(item: Mapping[str, Any], origin: str, mark: dict[str, Any]) -> Iterator[TextPart]:
    kept = mark | {key: item[key] for key in MESSAGE_KEYS if item.get(key) is not None}
    content = item.get("content")
    for entry in content if isinstance(content, list) else [{"type": "output_text", "text": content}]:
        if not isinstance(entry, dict):
            continue
        opaque = kept | {key: entry[key] for key in CONTENT_KEYS if entry.get(key)}
        if refused := entry.get("type") == "refusal":
            opaque["refusal"] = True
        text = entry.get("refusal" if refused else "text")
        # Without an id there is nothing to keep, but whether it was a refusal: such a message is like anybody's.
        keep = "id" in kept or refused
        yield TextPart(
            text=text if isinstance(text, str) else "",
            provider=origin if keep else None,
            opaque=opaque if keep else None,
        )


def _call(item: Mapping[str, Any], origin: str, mark: dict[str, Any]) -> ToolCallPart:
    raw = item.get("arguments")
    raw = messages.clean_json(raw if isinstance(raw, str) else json.dumps(raw or {}, ensure_ascii=False))
    opaque = {key: item[key] for key in CALL_KEYS if item.get(key) is not None}
    arguments = parse_arguments(raw)
    if arguments is not None and raw.strip() and write_arguments(arguments) != raw:
        # As the model wrote it: its cache knows that text, and its reasoning may be left out behind another one.
        # Most often only the order of the keys is lost, and arguments are too large to be kept twice.
        keys = list(arguments)
        opaque |= {"keys": keys} if write_arguments(arguments, keys) == raw else {"arguments": raw}
    return ToolCallPart(
        id=string(item.get("call_id")),
        name=string(item.get("name")),
        arguments=arguments or {},
        malformed=None if arguments is not None else raw,
        provider=origin if opaque else None,
        opaque=mark | opaque if opaque else None,
    )


def write_arguments(arguments: Mapping[str, Any], keys: Sequence[str] = ()) -> str:
    """Arguments of a call as the wire has them: their keys in order of ``keys``, where these are all, or sorted."""
    order = keys if set(keys) == set(arguments) else sorted(arguments)
    fields = (f"{json_text(key)}:{json_text(arguments[key], sort_keys=True)}" for key in order)
    return f"{{{','.join(fields)}}}"
