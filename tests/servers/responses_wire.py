"""Replies of a fake model, and the bytes that they are in the Responses format.

A reply is a list of output items. Reasoning is "encrypted" so that the server can tell, when it comes back, whether it
is unchanged, which model wrote it, and which item it belongs to.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.servers.chat_wire import Call

Item = dict[str, Any]
_PIECES = re.compile(r"\S+\s*|\s+")
_ids = itertools.count(1)


@dataclass(slots=True)
class Reply:
    """What the fake model does with a request."""

    text: str = ""
    calls: Sequence[Call] = ()
    thinking: Sequence[str] = ()
    """Parts of the summary of a reasoning item."""
    reasons: bool = False
    """A reasoning item also without a summary."""
    refusal: str = ""
    phase: str | None = None
    """Of the message."""
    items: Sequence[Item] | None = None
    """Instead of all the above: the output. Reasoning items get their encrypted content."""
    incomplete: str | None = None
    """Why the reply ends early (``max_output_tokens``, ``content_filter``): its last item is then incomplete."""
    failed: Mapping[str, Any] | None = None
    """Error object of ``response.failed``, in place of the end."""
    usage: Mapping[str, Any] | None = None
    """By default pieces and bytes counted."""
    events: Sequence[Any] | None = None
    """Instead of all the above: JSON values (or bytes, sent as they are) of the stream."""
    end: bool = True
    """Send the event that ends the response."""
    final_output: bool = True
    """Give the output with that event, as the API does; some servers leave it empty."""
    delay: float = 0.0
    """Seconds before each event."""
    hang: asyncio.Event | None = None
    """Wait for it before the answer begins."""
    hang_after: int = -1
    """With ``hang``: wait after this many events instead."""
    cut_after: int | None = None
    """Reset the connection after this many bytes of the body."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Mapping[str, Any] | None = None
    """Instead of a response: this, whole."""


def as_reply(value: object) -> Reply:
    """A reply from what a rule may return: a ``Reply``, text, a ``Call``, or a list of both."""
    if isinstance(value, Reply):
        return value
    items = value if isinstance(value, list | tuple) else [value]
    text = "".join(item for item in items if isinstance(item, str))
    return Reply(text=text, calls=[item for item in items if isinstance(item, Call)])


def fresh(prefix: str) -> str:
    """A new id: ``rs_…`` reasoning, ``msg_…`` messages, ``fc_…`` function calls, ``ws_…`` searches."""
    return f"{prefix}_{next(_ids):016x}"


def reasoning(*summary: str, content: Sequence[str] = ()) -> Item:
    """A reasoning item."""
    item: Item = {"id": fresh("rs"), "type": "reasoning"}
    item["summary"] = [{"type": "summary_text", "text": text} for text in summary]
    return item | ({"content": [{"type": "reasoning_text", "text": text} for text in content]} if content else {})


def message(text: str = "", *, refusal: str = "", phase: str | None = None, annotations: Sequence[Any] = ()) -> Item:
    """A message of the model."""
    content: list[Item] = []
    if text or not refusal:
        content.append({"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []})
    if refusal:
        content.append({"type": "refusal", "refusal": refusal})
    item = {"id": fresh("msg"), "type": "message", "status": "completed", "role": "assistant", "content": content}
    return item | ({"phase": phase} if phase else {})


def function_call(call: Call) -> Item:
    """A call."""
    text = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, separators=(",", ":"))
    ids = {"id": fresh("fc"), "call_id": call.id or fresh("call")}
    return ids | {"type": "function_call", "status": "completed", "name": call.name, "arguments": text}


def seal(item: Item, model: str, follower: str | None) -> str:
    """Encrypted content of a reasoning item: what it was, who wrote it, what follows it."""
    kept = {"id": item["id"], "model": model, "follower": follower, "summary": item["summary"]}
    return "gAAAA" + base64.urlsafe_b64encode(json.dumps(kept).encode()).decode()


def unseal(content: object) -> dict[str, Any] | None:
    """What was sealed; None for anything else."""
    try:
        kept = json.loads(base64.urlsafe_b64decode(str(content).removeprefix("gAAAA")))
    except ValueError:
        return None
    return kept if isinstance(kept, dict) else None


def output(reply: Reply, *, model: str, encrypted: bool) -> list[Item]:
    """The output items of a reply."""
    items = [dict(item) for item in reply.items] if reply.items is not None else list(_items(reply))
    if reply.incomplete and items and "status" in items[-1]:
        items[-1]["status"] = "incomplete"
    for item, after in itertools.zip_longest(items, items[1:]):
        if item["type"] == "reasoning" and encrypted and "encrypted_content" not in item:
            item["encrypted_content"] = seal(item, model, after["id"] if after else None)
    return items


def _items(reply: Reply) -> Iterator[Item]:
    if reply.thinking or reply.reasons:
        yield reasoning(*reply.thinking)
    if reply.text or reply.refusal or not reply.calls:
        yield message(reply.text, refusal=reply.refusal, phase=reply.phase)
    yield from map(function_call, reply.calls)


def usage_of(reply: Reply, body_size: int) -> Mapping[str, Any]:
    """The reply's usage: given, or counted (four bytes a token)."""
    if reply.usage is not None:
        return reply.usage
    read, written = body_size // 4, len(_PIECES.findall(reply.text)) + 8 * len(reply.calls)
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + written,
    }


def whole(reply: Reply, *, asked: Mapping[str, Any], body_size: int, encrypted: bool) -> dict[str, Any]:
    """The response object at its end."""
    status = "failed" if reply.failed else "incomplete" if reply.incomplete else "completed"
    return _response(asked) | {
        "status": status,
        "error": reply.failed,
        "incomplete_details": {"reason": reply.incomplete} if reply.incomplete else None,
        "output": output(reply, model=asked["model"], encrypted=encrypted),
        "usage": usage_of(reply, body_size),
    }


def _response(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": fresh("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": asked.get("instructions"),
        "model": asked["model"],
        "output": [],
        "parallel_tool_calls": asked.get("parallel_tool_calls", True),
        "store": asked.get("store", True),
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": asked.get("tools", []),
        "usage": None,
    }


def stream(reply: Reply, ended: dict[str, Any]) -> Iterator[bytes]:
    """The events of a streamed reply that comes to ``ended``."""
    if reply.events is not None:
        for event in reply.events:
            yield event if isinstance(event, bytes) else _event(event)
        return
    begun = ended | {"status": "in_progress", "output": [], "usage": None, "error": None, "incomplete_details": None}
    events = itertools.chain(
        ({"type": f"response.{name}", "response": begun} for name in ("created", "in_progress")),
        *(_of_item(index, item) for index, item in enumerate(ended["output"])),
    )
    for number, event in enumerate(events):
        yield _event(event | {"sequence_number": number})
    if reply.end:
        last = ended if reply.final_output else ended | {"output": []}
        yield _event({"type": f"response.{ended['status']}", "response": last})


def _event(event: Any) -> bytes:
    name = event.get("type", "") if isinstance(event, dict) else ""
    return f"event: {name}\ndata: ".encode() + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


def _of_item(index: int, item: Item) -> Iterator[Item]:
    at = {"output_index": index, "item_id": item["id"]}
    empty = {"message": {"content": []}, "function_call": {"arguments": ""}, "reasoning": {"summary": []}}
    begun = item | empty.get(item["type"], {}) | ({"status": "in_progress"} if "status" in item else {})
    yield {"type": "response.output_item.added", "output_index": index, "item": begun}
    match item["type"]:
        case "reasoning":
            yield from _of_reasoning(item, at)
        case "message":
            for number, part in enumerate(item["content"]):
                yield from _of_content(part, at | {"content_index": number})
        case "function_call":
            for start in range(0, len(item["arguments"]), 16):
                piece = item["arguments"][start : start + 16]
                yield {"type": "response.function_call_arguments.delta", "delta": piece} | at
            if item["status"] == "completed":
                yield {"type": "response.function_call_arguments.done", "arguments": item["arguments"]} | at
        case "web_search_call":
            yield {"type": "response.web_search_call.searching"} | at
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _of_reasoning(item: Item, at: Item) -> Iterator[Item]:
    for number, part in enumerate(item["summary"]):
        here = at | {"summary_index": number}
        yield {"type": "response.reasoning_summary_part.added", "part": part | {"text": ""}} | here
        for piece in _PIECES.findall(part["text"]):
            yield {"type": "response.reasoning_summary_text.delta", "delta": piece} | here
        yield {"type": "response.reasoning_summary_text.done", "text": part["text"]} | here
        yield {"type": "response.reasoning_summary_part.done", "part": part} | here
    for number, part in enumerate(item.get("content", ())):
        for piece in _PIECES.findall(part["text"]):
            yield {"type": "response.reasoning_text.delta", "delta": piece, "content_index": number} | at


def _of_content(part: Item, at: Item) -> Iterator[Item]:
    kind, text = ("refusal", part["refusal"]) if part["type"] == "refusal" else ("output_text", part["text"])
    key = "refusal" if kind == "refusal" else "text"
    yield {"type": "response.content_part.added", "part": part | {key: ""}} | at
    for piece in _PIECES.findall(text):
        yield {"type": f"response.{kind}.delta", "delta": piece, "obfuscation": "xyz"} | at
    yield {"type": f"response.{kind}.done", key: text} | at
    yield {"type": "response.content_part.done", "part": part} | at
