"""A request's ``contents`` as messages again: what a conversation looked like before it was encoded."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..types.messages import FilePart, Message, OpaquePart, Part, TextPart, ThinkingPart, ToolResultPart
from .google_reply import read_call
from .google_request import UNSIGNED


def decode(contents: Sequence[Mapping[str, Any]], *, origin: str = "google") -> list[Message]:
    """``contents`` as messages; ``origin`` is who the opaque data is from.

    Calls without an id get one, and their results find them by order and name.
    """
    return list(Decoder(origin).messages(contents))


class Decoder:
    """Decodes one conversation."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._numbers = itertools.count(1)
        self._open: dict[str, deque[str]] = defaultdict(deque)  # calls of a name that have no result yet

    def messages(self, contents: Sequence[Mapping[str, Any]]) -> Iterator[Message]:
        """The messages of ``contents``, in order."""
        for content in contents:
            parts = content.get("parts") or ()
            if content.get("role") == "model":
                self._open.clear()
                yield Message(role="assistant", parts=self._parts(parts))
                continue
            if results := tuple(self._result(part["functionResponse"]) for part in parts if "functionResponse" in part):
                yield Message(role="tool", parts=results)
            if said := self._parts(part for part in parts if "functionResponse" not in part):
                yield Message(role="user", parts=said)

    def _parts(self, parts: Iterable[Mapping[str, Any]]) -> tuple[Part, ...]:
        return tuple(made for part in parts if (made := self._part(part)) is not None)

    def _part(self, part: Mapping[str, Any]) -> Part | None:
        beside = {key: value for key, value in part.items() if key not in ("text", "thought")}
        if "functionCall" in part:
            return self._call(part)
        if isinstance(text := part.get("text"), str):
            if part.get("thought") is True:
                return ThinkingPart(text=text, provider=self._origin, opaque=beside or None)
            if text:
                return TextPart(text=text, provider=self._origin if beside else None, opaque=beside or None)
        if part.keys() == {"inlineData"} or part.keys() == {"fileData"}:
            return _file(part)
        return OpaquePart(provider=self._origin, data=dict(part)) if beside else None

    def _call(self, part: Mapping[str, Any]) -> Part:
        if part.get("thoughtSignature") == UNSIGNED:
            part = {key: value for key, value in part.items() if key != "thoughtSignature"}
        call_id = part["functionCall"].get("id") or f"call_{next(self._numbers)}"
        self._open[part["functionCall"]["name"]].append(call_id)
        return read_call(part, call_id, self._origin)

    def _result(self, response: Mapping[str, Any]) -> ToolResultPart:
        name, said = response["name"], response.get("response") or {}
        waiting = self._open[name]
        call_id = response.get("id") or (waiting[0] if waiting else f"call_{next(self._numbers)}")
        if call_id in waiting:
            waiting.remove(call_id)
        is_error = "error" in said
        content = said["error"] if is_error else said.get("output", said)
        if not isinstance(content, str):
            content = json.dumps(content, ensure_ascii=False)
        files = tuple(map(_file, response.get("parts") or ()))
        return ToolResultPart(call_id=call_id, name=name, content=content, is_error=is_error, files=files)


def _file(part: Mapping[str, Any]) -> FilePart:
    if "fileData" in part:
        data = part["fileData"]
        media_type = data.get("mimeType") or "application/octet-stream"
        return FilePart(media_type=media_type, url=data["fileUri"], name=data.get("displayName"))
    data = part["inlineData"]
    return FilePart(media_type=data["mimeType"], data=data["data"], name=data.get("displayName"))
