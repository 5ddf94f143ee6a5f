"""Replies of a fake model, and the bytes that they are in the chat completions format."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_PIECES = re.compile(r"\S+\s*|\s+")
_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; ``arguments`` as text goes out as it is. Without an ``id`` it gets a fresh one."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str = ""


@dataclass(slots=True)
class Reply:
    """What the fake model does with a request."""

    text: str = ""
    calls: Sequence[Call] = ()
    thinking: str = ""
    finish_reason: str | None = None
    """By default ``tool_calls`` or ``stop``."""
    usage: Mapping[str, Any] | None = None
    """By default pieces and bytes counted."""
    chunks: Sequence[Any] | None = None
    """Instead of all the above: JSON values (or bytes, sent as they are) of the stream."""
    done: bool = True
    """End the stream with ``[DONE]``."""
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
    body: bytes | Mapping[str, Any] | None = None
    """Instead of a completion: this, whole."""


def as_reply(value: object) -> Reply:
    """A reply from what a rule may return: a ``Reply``, text, a ``Call``, or a list of both."""
    if isinstance(value, Reply):
        return value
    items = value if isinstance(value, list | tuple) else [value]
    text = "".join(item for item in items if isinstance(item, str))
    return Reply(text=text, calls=[item for item in items if isinstance(item, Call)])


def error(status: int, message: str, *, code: str | None = None, type: str | None = None, **headers: str) -> Reply:
    """An error as the API sends it; ``retry_after="2"`` becomes a header."""
    body = {"error": {"message": message, "type": type, "param": None, "code": code}}
    return Reply(status=status, body=body, headers={key.replace("_", "-"): value for key, value in headers.items()})


def _named(calls: Sequence[Call]) -> list[tuple[str, str, str]]:
    return [
        (
            call.id or f"call_{next(_ids):08d}",
            call.name,
            call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments),
        )
        for call in calls
    ]


def _deltas(reply: Reply) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": None if reply.calls and not reply.text else ""}
    for piece in _PIECES.findall(reply.thinking):
        yield {"reasoning_content": piece}
    for piece in _PIECES.findall(reply.text):
        yield {"content": piece}
    for index, (call_id, name, arguments) in enumerate(_named(reply.calls)):
        function = {"name": name, "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
        for at in range(0, len(arguments), 16):
            yield {"tool_calls": [{"index": index, "function": {"arguments": arguments[at : at + 16]}}]}


def _reason(reply: Reply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.calls else "stop")


def usage_of(reply: Reply, body_size: int) -> Mapping[str, Any]:
    """The reply's usage: given, or counted (four bytes a token)."""
    if reply.usage is not None:
        return reply.usage
    written = len(_PIECES.findall(reply.text + reply.thinking)) + sum(
        4 + len(str(c.arguments)) // 4 for c in reply.calls
    )
    read = body_size // 4
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def stream(reply: Reply, *, model: str, body_size: int, include_usage: bool) -> Iterator[bytes]:
    """The events of a streamed reply."""
    if reply.chunks is not None:
        for chunk in reply.chunks:
            yield chunk if isinstance(chunk, bytes) else _event(chunk)
    else:
        head = {
            "id": f"chatcmpl-{next(_ids)}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
        }
        head |= {"model": model}
        for delta in _deltas(reply):
            yield _event(head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        yield _event(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": _reason(reply)}]})
        if include_usage:
            yield _event(head | {"choices": [], "usage": usage_of(reply, body_size)})
    if reply.done:
        yield b"data: [DONE]\n\n"


def _event(chunk: object) -> bytes:
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def whole(reply: Reply, *, model: str, body_size: int) -> dict[str, Any]:
    """The reply not streamed."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.calls:
        functions = [(key, {"name": name, "arguments": arguments}) for key, name, arguments in _named(reply.calls)]
        message["tool_calls"] = [{"id": key, "type": "function", "function": function} for key, function in functions]
    return {
        "id": f"chatcmpl-{next(_ids)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": _reason(reply), "logprobs": None}],
        "usage": usage_of(reply, body_size),
    }
