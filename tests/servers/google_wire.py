"""Replies of a fake Gemini, and the bytes that they are in the format of ``streamGenerateContent``."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_PIECES = re.compile(r"\S+\s*|\s+")
_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Call:
    """A function call. ``id`` None leaves it out, as models before Gemini 3 do; empty makes a fresh one."""

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = ""
    signature: str | None = None


@dataclass(slots=True)
class Reply:
    """What the fake model does with a request."""

    text: str = ""
    calls: Sequence[Call] = ()
    thinking: str = ""
    signature: str | None = None
    """Of the text: sent with an empty part at its end, as the API does."""
    finish_reason: str | None = "STOP"
    usage: Mapping[str, Any] | None = None
    chunks: Sequence[Any] | None = None
    """Instead of all the above: JSON values (or bytes, sent as they are) of the stream."""
    delay: float = 0.0
    """Seconds before each piece."""
    hang: asyncio.Event | None = None
    """Wait for it before the answer begins."""
    hang_after: int = -1
    """With ``hang``: wait after this many pieces instead."""
    cut_after: int | None = None
    """Reset the connection after this many bytes of the body."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Mapping[str, Any] | list[Any] | None = None
    """Instead of a stream: this, whole."""


def as_reply(value: object) -> Reply:
    """A reply from what a rule may return: a ``Reply``, text, a ``Call``, or a list of both."""
    if isinstance(value, Reply):
        return value
    items = value if isinstance(value, list | tuple) else [value]
    text = "".join(item for item in items if isinstance(item, str))
    return Reply(text=text, calls=[item for item in items if isinstance(item, Call)])


def error_body(status: int, message: str, label: str, *details: Mapping[str, Any]) -> dict[str, Any]:
    """Google's error object."""
    error: dict[str, Any] = {"code": status, "message": message, "status": label}
    if details:
        error["details"] = list(details)
    return {"error": error}


def error(status: int, message: str, label: str, *details: Mapping[str, Any], **headers: str) -> Reply:
    """An error as the API sends it; ``retry_after="2"`` becomes a header."""
    return Reply(
        status=status,
        body=error_body(status, message, label, *details),
        headers={key.replace("_", "-"): value for key, value in headers.items()},
    )


def reason(value: str) -> dict[str, Any]:
    """An ErrorInfo detail."""
    return {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": value, "domain": "googleapis.com"}


def retry_info(delay: str) -> dict[str, Any]:
    """A RetryInfo detail."""
    return {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}


def chunk(*parts: Mapping[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk with ``parts``; ``more`` stands beside the candidates."""
    candidate: dict[str, Any] = {"index": 0}
    if parts:
        candidate["content"] = {"role": "model", "parts": list(parts)}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], **more}


def _parts(reply: Reply) -> Iterator[dict[str, Any]]:
    for piece in _PIECES.findall(reply.thinking):
        yield {"text": piece, "thought": True}
    for piece in _PIECES.findall(reply.text):
        yield {"text": piece}
    if reply.signature is not None:
        yield {"text": "", "thoughtSignature": reply.signature}
    for call in reply.calls:
        made: dict[str, Any] = {"name": call.name, "args": dict(call.args)}
        if call.id is not None:
            made["id"] = call.id or f"fc-{next(_ids)}"
        yield {"functionCall": made} | ({"thoughtSignature": call.signature} if call.signature else {})


def usage_of(reply: Reply, body_size: int) -> Mapping[str, Any]:
    """The reply's usage: given, or counted (four bytes a token)."""
    if reply.usage is not None:
        return reply.usage
    thoughts = len(_PIECES.findall(reply.thinking))
    written = len(_PIECES.findall(reply.text)) + sum(4 + len(str(call.args)) // 4 for call in reply.calls)
    read = body_size // 4
    return {
        "promptTokenCount": read,
        "candidatesTokenCount": written,
        "thoughtsTokenCount": thoughts,
        "totalTokenCount": read + written + thoughts,
    }


def stream(reply: Reply, *, model: str, body_size: int) -> Iterator[bytes]:
    """The events of a streamed reply."""
    if reply.chunks is not None:
        for value in reply.chunks:
            yield value if isinstance(value, bytes) else _event(value)
        return
    more = {"modelVersion": model, "responseId": f"r{next(_ids)}"}
    for part in _parts(reply):
        yield _event(chunk(part, **more))
    if reply.finish_reason:
        last = chunk({"text": ""}, finish=reply.finish_reason, usageMetadata=usage_of(reply, body_size), **more)
        yield _event(last)


def _event(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\r\n\r\n"
