"""``contents`` of a generateContent request, read back as messages."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Any

from ..types.messages import FilePart, OpaquePart, Part, TextPart, ThinkingPart
from .conversation import Conversation, Wire, imported_file, without_nulls
from .google_reply import decode_function_call
from .google_request import PLACEHOLDER_SIGNATURE

_CAMEL = {
    "function_call": "functionCall",
    "function_response": "functionResponse",
    "inline_data": "inlineData",
    "file_data": "fileData",
    "mime_type": "mimeType",
    "file_uri": "fileUri",
    "display_name": "displayName",
    "thought_signature": "thoughtSignature",
}
"""Dictionaries of Google's Python SDK spell them so."""


def decode(contents: Iterable[Wire], conversation: Conversation) -> None:
    """Read ``contents``. Calls without an id get one, and their results find them by order and name."""
    numbers = itertools.count(1)
    waiting: dict[str, deque[str]] = defaultdict(deque)  # calls of a name that have no result yet
    for content in contents:
        parts = [_fields(part) for part in content.get("parts") or ()]
        match content.get("role", "user"):
            case "model":
                waiting.clear()
                conversation.add_reply(_reply(parts, conversation.origin, numbers, waiting))
            case "user" | "function" | "tool":
                _read_user(parts, conversation, waiting)
            case role:
                raise ValueError(f"its role is {role!r:.100}, and not user or model")


def _fields(value: Any) -> dict[str, Any]:
    return {_CAMEL.get(key, key): inner for key, inner in without_nulls(value).items()}


def _reply(
    parts: Iterable[Wire], origin: str, numbers: Iterable[int], waiting: Mapping[str, deque[str]]
) -> Iterable[Part]:
    for part in parts:
        beside = {key: value for key, value in part.items() if key not in ("text", "thought")}
        if "functionCall" in part:
            if part.get("thoughtSignature") == PLACEHOLDER_SIGNATURE:
                part = {key: value for key, value in part.items() if key != "thoughtSignature"}
            call_id = part["functionCall"].get("id") or f"call_{next(iter(numbers))}"
            waiting[part["functionCall"]["name"]].append(call_id)
            yield decode_function_call(part, call_id, origin)
        elif isinstance(text := part.get("text"), str) and part.get("thought") is True:
            yield ThinkingPart(text=text, provider=origin, opaque=beside or None)
        elif isinstance(text, str) and text:
            yield TextPart(text=text, provider=origin if beside else None, opaque=beside or None)
        elif part.keys() == {"inlineData"} or part.keys() == {"fileData"}:
            yield _file(part)
        elif beside:
            yield OpaquePart(provider=origin, data=dict(part))


def _read_user(parts: Iterable[Wire], conversation: Conversation, waiting: Mapping[str, deque[str]]) -> None:
    said: list[TextPart | FilePart] = []
    for part in parts:
        if "functionResponse" in part:
            _read_result(_fields(part["functionResponse"]), conversation, waiting)
        elif part.keys() == {"text"}:
            said += [TextPart(text=part["text"])] if part["text"] else []
        elif part.keys() == {"inlineData"} or part.keys() == {"fileData"}:
            said.append(_file(part))
        else:
            raise ValueError(f"a part of it has {', '.join(part) or 'nothing'}, which is not understood"[:300])
    if said:
        conversation.add_user(said)


def _read_result(response: Wire, conversation: Conversation, waiting: Mapping[str, deque[str]]) -> None:
    name, given = response["name"], response.get("response") or {}
    calls = waiting[name]
    if not (call_id := response.get("id") or (calls[0] if calls else None)):
        raise ValueError(f"it has a result of {name!r:.100}, and no message before it makes such a call")
    if call_id in calls:
        calls.remove(call_id)
    is_error = "error" in given
    content = given["error"] if is_error else given.get("output", given)
    if not isinstance(content, str):
        content = json.dumps(content, ensure_ascii=False)
    files = [_file(_fields(part)) for part in response.get("parts") or ()]
    conversation.add_result(call_id, content, files=files, is_error=is_error)


def _file(part: Wire) -> FilePart:
    if "fileData" in part:
        given = _fields(part["fileData"])
        media_type = given.get("mimeType") or "application/octet-stream"
        return imported_file(media_type, url=given["fileUri"], name=given.get("displayName"))
    given = _fields(part["inlineData"])
    data = given["data"].replace("-", "+").replace("_", "/")  # the SDK writes the URL's alphabet of base64
    return imported_file(given["mimeType"], data=data, name=given.get("displayName"))
