"""A request in the chat completions wire format, as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ports import ModelRequest, ToolSpec
from .chat_messages import encode_messages
from .encoding import encode_json

RESERVED = ("model", "messages", "stream", "stream_options", "tools", "tool_choice", "n")
"""Parameters that the adapter sets itself (``n``: it reads one choice, more would be paid for nothing)."""


def encode_request(request: ModelRequest, *, origin: str, max_tokens_name: str) -> bytes:
    """The body of ``POST /chat/completions`` at ``origin``: ``request`` in order, streamed, with usage.

    The messages come last, so that calls of one conversation have all that is before its end in common.
    """
    fragments: list[bytes] = []
    if request.system:
        fragments.append(encode_json({"role": "system", "content": request.system}))
    fragments.extend(encode_messages(request.messages, origin, request.files))
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
