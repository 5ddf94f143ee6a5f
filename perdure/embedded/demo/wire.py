"""OpenAI's chat completions, as far as the demo model speaks them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_PIECES = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that is offered."""

    name: str
    properties: Mapping[str, Mapping[str, Any]]
    required: frozenset[str]


@dataclass(frozen=True, slots=True)
class Ask:
    """A tool call."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """A message: ``text`` of a user or of the model, with its calls; or the result of call ``call_id``."""

    role: str
    text: str = ""
    calls: tuple[Ask, ...] = ()
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What the model is asked."""

    turns: Sequence[Turn] = ()
    tools: Sequence[Tool] = ()
    system: str = ""
    model: str = "demo"
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Say:
    """What the model answers: text, calls, or both."""

    text: str = ""
    calls: Sequence[Ask] = field(default_factory=tuple)


def parse(body: bytes) -> Conversation:
    """The conversation of a request. Raises ``ValueError`` for what is none."""
    request = json.loads(body)
    if not isinstance(request, dict) or not isinstance(request.get("messages"), list):
        raise ValueError("The request needs 'messages'.")
    turns = [_turn(message) for message in request["messages"] if isinstance(message, dict)]
    return Conversation(
        turns=[turn for turn in turns if turn.role in ("user", "assistant", "tool")],
        tools=[_tool(tool["function"]) for tool in request.get("tools") or ()],
        system="\n".join(turn.text for turn in turns if turn.role in ("system", "developer")),
        model=str(request.get("model", "demo")),
        stream=bool(request.get("stream")),
    )


def _turn(message: Mapping[str, Any]) -> Turn:
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
    calls = tuple(
        Ask(call["function"]["name"], _object(call["function"].get("arguments")), call["id"])
        for call in message.get("tool_calls") or ()
    )
    return Turn(str(message.get("role")), str(content), calls, str(message.get("tool_call_id", "")))


def _object(text: object) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _tool(function: Mapping[str, Any]) -> Tool:
    schema = function.get("parameters") or {}
    return Tool(function["name"], schema.get("properties") or {}, frozenset(schema.get("required") or ()))


def number_calls(say: Say, conversation: Conversation) -> Say:
    """``say`` with ids for its calls that the conversation does not have yet; the same request, the same ids."""
    before = sum(len(turn.calls) for turn in conversation.turns)
    calls = [Ask(call.name, call.arguments, f"call_{before + n:04d}") for n, call in enumerate(say.calls, 1)]
    return Say(say.text, calls)


def _head(conversation: Conversation, kind: str) -> dict[str, Any]:
    number = len(conversation.turns)
    return {"id": f"chatcmpl-demo-{number}", "object": kind, "created": 0, "model": conversation.model}


def _calls(say: Say) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
        for call in say.calls
    ]


def _usage(say: Say, size: int) -> dict[str, int]:
    """Tokens, as four bytes each: the demo has no tokenizer, and nobody pays."""
    written = len(_PIECES.findall(say.text)) + sum(8 + len(str(call.arguments)) // 4 for call in say.calls)
    return {"prompt_tokens": size // 4, "completion_tokens": written, "total_tokens": size // 4 + written}


def whole(say: Say, conversation: Conversation, size: int) -> dict[str, Any]:
    """The reply in one piece; ``size`` is the request's in bytes."""
    message: dict[str, Any] = {"role": "assistant", "content": say.text or None}
    if say.calls:
        message["tool_calls"] = _calls(say)
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if say.calls else "stop"}
    return _head(conversation, "chat.completion") | {"choices": [choice], "usage": _usage(say, size)}


async def stream(say: Say, conversation: Conversation, size: int, delay: float) -> AsyncGenerator[bytes, None]:
    """The reply token by token, ``delay`` seconds apart, as server-sent events."""
    head = _head(conversation, "chat.completion.chunk")

    def event(**fields: Any) -> bytes:
        return b"data: " + json.dumps(head | fields).encode() + b"\n\n"

    def delta(finish: str | None = None, **fields: Any) -> bytes:
        return event(choices=[{"index": 0, "delta": fields, "finish_reason": finish}])

    yield delta(role="assistant", content="" if say.text else None)
    for piece in _PIECES.findall(say.text):
        await asyncio.sleep(delay)
        yield delta(content=piece)
    for index, call in enumerate(_calls(say)):
        await asyncio.sleep(delay)
        yield delta(tool_calls=[{"index": index, **call}])
    yield delta("tool_calls" if say.calls else "stop")
    yield event(choices=[], usage=_usage(say, size))
    yield b"data: [DONE]\n\n"
