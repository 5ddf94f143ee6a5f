"""Replies of a fake Claude, and the bytes that they are in the Messages format."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.servers import chat_wire
from tests.servers.chat_wire import Call

_PIECES = re.compile(r"\S+\s*|\s+")
_ids = itertools.count(1)

Block = dict[str, Any]


@dataclass(slots=True)
class Reply(chat_wire.Reply):
    """What the fake model does with a request: as at OpenAI, and blocks in any order.

    ``finish_reason`` is the ``stop_reason``; ``chunks`` are JSON values of the stream (or bytes, sent as they are),
    each under the event of its type. Without ``done`` the stream has no ``message_stop``.
    """

    blocks: Sequence[Block] | None = None
    """The content, instead of thinking, text and calls. Thinking without a signature gets a true one."""


def thinking(text: str) -> Block:
    """A thinking block with the signature that the server takes back."""
    return {"type": "thinking", "thinking": text, "signature": sign(text)}


def tool_use(call: Call) -> Block:
    """A call; arguments that are text go out as they are."""
    return {
        "type": "tool_use",
        "id": call.id or f"toolu_{next(_ids):08d}",
        "name": call.name,
        "input": call.arguments,
    }


def sign(text: str) -> str:
    """The signature of a thought: nobody else could have made it."""
    return "sig/" + hashlib.sha256(f"the server's secret {text}".encode()).hexdigest()[:24] + "=="


def as_reply(value: object) -> Reply:
    """A reply from what a rule may return: a ``Reply``, text, a ``Call``, a block, or a list of these in order."""
    if isinstance(value, Reply):
        return value
    if isinstance(value, chat_wire.Reply):
        return Reply(**{name: getattr(value, name) for name in chat_wire.Reply.__dataclass_fields__})
    items = value if isinstance(value, list | tuple) else [value]
    return Reply(blocks=[_as_block(item) for item in items])


def _as_block(item: object) -> Block:
    if isinstance(item, Call):
        return tool_use(item)
    if isinstance(item, str):
        return {"type": "text", "text": item}
    assert isinstance(item, dict), item
    return item


def error_body(message: str, type: str) -> Block:
    """An error as the API sends it."""
    return {"type": "error", "error": {"type": type, "message": message}, "request_id": "req_test"}


def error(status: int, message: str, type: str = "invalid_request_error", **headers: str) -> Reply:
    """A refusal; ``retry_after="2"`` becomes a header."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return Reply(status=status, body=error_body(message, type), headers=named)


def blocks_of(reply: Reply) -> list[Block]:
    """The reply's content."""
    if reply.blocks is not None:
        return list(reply.blocks)
    said: list[Block] = [thinking(reply.thinking)] if reply.thinking else []
    if reply.text:
        said.append({"type": "text", "text": reply.text})
    return [*said, *map(tool_use, reply.calls)]


def stop_reason(reply: Reply) -> str:
    """Given, or as the content has it."""
    called = any(block["type"] == "tool_use" for block in blocks_of(reply))
    return reply.finish_reason or ("tool_use" if called else "end_turn")


def usage_of(reply: Reply, body_size: int) -> Block:
    """The reply's usage: given, or counted (four bytes a token)."""
    if reply.usage is not None:
        return dict(reply.usage)
    written = sum(max(1, len(json.dumps(block)) // 4) for block in blocks_of(reply))
    return {"input_tokens": body_size // 4, "output_tokens": written}


def stream(reply: Reply, *, model: str, body_size: int) -> Iterator[bytes]:
    """The events of a streamed reply."""
    if reply.chunks is not None:
        for chunk in reply.chunks:
            yield chunk if isinstance(chunk, bytes) else event(chunk)
        return
    usage = usage_of(reply, body_size)
    message = _message(reply, model) | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
    yield event({"type": "message_start", "message": message})
    yield event({"type": "ping"})
    for index, block in enumerate(blocks_of(reply)):
        start, deltas = _begun(block)
        yield event({"type": "content_block_start", "index": index, "content_block": start})
        for delta in deltas:
            yield event({"type": "content_block_delta", "index": index, "delta": delta})
        yield event({"type": "content_block_stop", "index": index})
    ending = {"stop_reason": stop_reason(reply), "stop_sequence": None}
    told = {key: value for key, value in usage.items() if key != "input_tokens"}
    yield event({"type": "message_delta", "delta": ending, "usage": told})
    if reply.done:
        yield event({"type": "message_stop"})


def _begun(block: Block) -> tuple[Block, list[Block]]:
    """A block's start and the pieces that follow."""
    match block["type"]:
        case "text":
            deltas = [{"type": "text_delta", "text": piece} for piece in _PIECES.findall(block["text"])]
            cited = block.get("citations") or []
            deltas += [{"type": "citations_delta", "citation": citation} for citation in cited]
            return {"type": "text", "text": ""} | ({"citations": []} if cited else {}), deltas
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _PIECES.findall(block["thinking"])]
            signature = block.get("signature", sign(block["thinking"]))
            return {"type": "thinking", "thinking": "", "signature": ""}, [
                *deltas,
                {"type": "signature_delta", "signature": signature},
            ]
        case "tool_use" | "server_tool_use":
            arguments = block["input"] if isinstance(block["input"], str) else json.dumps(block["input"])
            pieces = [arguments[at : at + 16] for at in range(0, len(arguments), 16)] if block["input"] else []
            return block | {"input": {}}, [
                {"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces)
            ]
        case _:
            return block, []


def event(value: Mapping[str, Any]) -> bytes:
    """One event of the stream."""
    data = json.dumps(value, separators=(",", ":")).encode()
    return b"event: %b\ndata: %b\n\n" % (str(value.get("type")).encode(), data)


def whole(reply: Reply, *, model: str, body_size: int) -> Block:
    """The reply not streamed."""
    ended = {"stop_reason": stop_reason(reply), "usage": usage_of(reply, body_size)}
    return _message(reply, model) | {"content": blocks_of(reply)} | ended


def _message(reply: Reply, model: str) -> Block:
    return {"id": f"msg_{next(_ids)}", "type": "message", "role": "assistant", "model": model, "stop_sequence": None}
