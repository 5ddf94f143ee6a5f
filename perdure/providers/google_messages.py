"""Decodes ``contents`` of a generateContent request."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any

from ..types.messages import FilePart, OpaquePart, Part, TextPart, ThinkingPart
from .conversation import Conversation, WireObject, build_imported_file, drop_nulls
from .encoding import keep_opaque
from .google_reply import decode_function_call
from .google_request import PLACEHOLDER_SIGNATURE

_CAMEL_CASE = {
    "function_call": "functionCall",
    "function_response": "functionResponse",
    "inline_data": "inlineData",
    "file_data": "fileData",
    "mime_type": "mimeType",
    "file_uri": "fileUri",
    "display_name": "displayName",
    "thought_signature": "thoughtSignature",
}
"""Dictionaries of Google's Python SDK have these spellings."""


def decode_contents(contents: Iterable[WireObject], conversation: Conversation) -> None:
    """Decode ``contents``. Calls without an id get one, and their results find them by order and name."""
    decoder = _ContentDecoder(conversation)
    for content in contents:
        parts = [_normalize_fields(part) for part in content.get("parts") or ()]
        match content.get("role", "user"):
            case "model":
                conversation.add_reply(decoder.decode_reply(parts))
            case "user" | "function" | "tool":
                decoder.decode_user(parts)
            case role:
                raise ValueError(f"its role must be user or model, not {role!r:.100}")


def _normalize_fields(value: WireObject) -> dict[str, Any]:
    return {_CAMEL_CASE.get(key, key): inner for key, inner in drop_nulls(value).items()}


class _ContentDecoder:
    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._numbers = itertools.count(1)
        self._open_calls: dict[str, deque[str]] = defaultdict(deque)
        """Ids of the calls of the last reply that have no result yet, by tool."""

    def decode_reply(self, parts: Iterable[WireObject]) -> Iterator[Part]:
        origin = self._conversation.origin
        self._open_calls.clear()
        for part in parts:
            extra = {key: value for key, value in part.items() if key not in ("text", "thought")}
            text = part.get("text")
            if "functionCall" in part:
                if part.get("thoughtSignature") == PLACEHOLDER_SIGNATURE:
                    part = {key: value for key, value in part.items() if key != "thoughtSignature"}
                call_id = part["functionCall"].get("id") or f"call_{next(self._numbers)}"
                self._open_calls[part["functionCall"]["name"]].append(call_id)
                yield decode_function_call(part, call_id, origin)
            elif isinstance(text, str) and part.get("thought") is True:
                yield ThinkingPart(text=text, provider=origin, opaque=extra or None)
            elif isinstance(text, str) and text:
                yield TextPart(text=text, **keep_opaque(origin, extra))
            elif part.keys() in ({"inlineData"}, {"fileData"}):
                yield _decode_file(part)
            elif extra:
                yield OpaquePart(provider=origin, data=dict(part))

    def decode_user(self, parts: Iterable[WireObject]) -> None:
        content: list[TextPart | FilePart] = []
        for part in parts:
            if "functionResponse" in part:
                self._decode_result(_normalize_fields(part["functionResponse"]))
            elif part.keys() == {"text"}:
                content += [TextPart(text=part["text"])] if part["text"] else []
            elif part.keys() in ({"inlineData"}, {"fileData"}):
                content.append(_decode_file(part))
            else:
                raise ValueError(f"a part of it has {', '.join(part) or 'nothing'}, which cannot be imported"[:300])
        if content:
            self._conversation.add_user(content)

    def _decode_result(self, result: WireObject) -> None:
        name, response = result["name"], result.get("response") or {}
        open_ids = self._open_calls[name]
        if not (call_id := result.get("id") or (open_ids[0] if open_ids else None)):
            raise ValueError(f"it has a result of {name!r:.100}, but no message before it makes such a call")
        if call_id in open_ids:
            open_ids.remove(call_id)
        is_error = "error" in response
        content = response["error"] if is_error else response.get("output", response)
        if not isinstance(content, str):
            content = json.dumps(content, ensure_ascii=False)
        files = [_decode_file(_normalize_fields(part)) for part in result.get("parts") or ()]
        self._conversation.add_result(call_id, content, files=files, is_error=is_error)


def _decode_file(part: WireObject) -> FilePart:
    if "fileData" in part:
        file = _normalize_fields(part["fileData"])
        media_type = file.get("mimeType") or "application/octet-stream"
        return build_imported_file(media_type, url=file["fileUri"], name=file.get("displayName"))
    file = _normalize_fields(part["inlineData"])
    data = file["data"].replace("-", "+").replace("_", "/")  # the SDK writes base64 in the alphabet of URLs
    return build_imported_file(file["mimeType"], data=data, name=file.get("displayName"))
