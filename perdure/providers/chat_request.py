"""A request in the chat completions wire format, as bytes.

Each message is encoded once in its life: its fragment stays on it, and a call joins the fragments. So a call
costs what copying the transcript costs, not what encoding it does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, assert_never

from ..ports import ModelRequest, ToolSpec
from ..types.messages import FilePart, Message, OpaquePart, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from .encoding import encode_json
from .foreign import loaded

FORMAT = "openai_chat"
"""Under this name a message remembers its fragment."""

RESERVED = ("model", "messages", "stream", "stream_options", "tools", "tool_choice", "n")
"""Parameters that the adapter sets itself (``n``: it reads one choice, more would be paid for nothing)."""


def encode_request(request: ModelRequest, *, max_tokens_name: str) -> bytes:
    """The body of ``POST /chat/completions``: ``request`` in order, streamed, with usage."""
    fragments: list[bytes] = []
    if request.system:
        fragments.append(encode_json({"role": "system", "content": request.system}))
    fragments.extend(fragment for message in request.messages if (fragment := encode_message(message)))
    head: dict[str, Any] = {"model": request.model, "stream": True, "stream_options": {"include_usage": True}}
    if request.tools:
        head["tools"] = [encode_tool(spec) for spec in request.tools]
    if request.tool_choice:
        head["tool_choice"] = {"type": "function", "function": {"name": request.tool_choice}}
    head |= encode_settings(request.settings, max_tokens_name=max_tokens_name)
    head |= request.provider_options
    return b"".join((encode_json(head)[:-1], b',"messages":[', b",".join(fragments), b"]}"))


def encode_settings(settings: Mapping[str, Any], *, max_tokens_name: str) -> dict[str, Any]:
    """Canonical settings under their wire names."""
    names = {"max_tokens": max_tokens_name}
    return {names.get(key, key): value for key, value in settings.items() if value is not None}


def encode_tool(spec: ToolSpec) -> dict[str, Any]:
    """A tool's definition."""
    function = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    return {"type": "function", "function": function}


def encode_message(message: Message) -> bytes:
    """The message's fragment: one or more JSON objects (each tool result is one), joined by commas."""
    fragment = message.wire(FORMAT)
    if fragment is None:
        fragment = b",".join(map(encode_json, _plain(message)))
        message.remember_wire(FORMAT, fragment)
    return fragment


def _plain(message: Message) -> Iterator[dict[str, Any]]:
    match message.role:
        case "system" | "user":
            yield {"role": message.role, "content": _text(message)}
        case "assistant":
            yield _assistant(message)
        case "tool":
            for result in message.tool_results:
                yield {"role": "tool", "tool_call_id": result.call_id, "content": _result(result)}
        case never:
            assert_never(never)


def _assistant(message: Message) -> dict[str, Any]:
    calls = [_call(call) for call in message.tool_calls]
    text = _text(message)
    if calls:
        return {"role": "assistant", "content": text or None, "tool_calls": calls}
    # Neither text nor calls happens (an empty reply, thinking alone): the API refuses null then, not "".
    return {"role": "assistant", "content": text}


def _call(call: ToolCallPart) -> dict[str, Any]:
    # Malformed arguments go back as {}: the API wants JSON, and the result that follows says what was wrong.
    arguments = json.dumps(call.arguments, ensure_ascii=False, separators=(",", ":"))
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _text(message: Message) -> str:
    texts: list[str] = []
    for part in message.parts:
        match part:
            case TextPart():
                texts.append(loaded(part.text, part))
            case ThinkingPart() | ToolCallPart() | ToolResultPart() | FilePart() | OpaquePart():
                pass  # thinking is the writer's own; calls and results have their place
            case never:
                assert_never(never)
    return "".join(texts)


def _result(part: ToolResultPart) -> str:
    return loaded(part.content, part)
