"""Streams of the four providers, event by event as their APIs send them, replayed by a server on loopback.

The first reply says something and calls ``look`` with arguments in pieces (Google: whole), the second answers. The
server holds within the arguments until the test has seen their beginning: what comes then is read together with the
end of the reply.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from perdure.providers import Anthropic, Google, OpenAIChat, OpenAIResponses, register_provider, registry
from tests.servers.http import Answer, HttpServer, Request
from tests.support.scripts import Gate

TEXT = "I will look at INV-8 first, then answer."
ANSWER = "It is paid."
RAW = '{"invoice_id": "INV-8 \\u00E9\\ud83d\\ude00", "lines": [1, 2.50, {"deep": null}], "note": "a \\"b\\" \\n"}'
PIECES = [RAW[at : at + 12] for at in range(0, len(RAW), 12)]
WORDS = [TEXT[at : at + 9] for at in range(0, len(TEXT), 9)]
HOLD: dict[str, Any] = {}
"""In a stream: the place where the server holds."""
Stream = list[dict[str, Any]]
_HELD_PIECES = [*PIECES[:-2], None, *PIECES[-2:]]


def _chat_chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-CTqYxNn5Zk", "object": "chat.completion.chunk", "created": 1761234567,
        "model": "gpt-5-mini-2025-08-07", "service_tier": "default", "system_fingerprint": None,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None, "obfuscation": "a1B2c3",
    }  # fmt: skip


def _chat_streams() -> list[Stream]:
    usage: dict[str, Any] = {"prompt_tokens": 60, "completion_tokens": 40, "total_tokens": 100}
    last = _chat_chunk({}) | {"choices": [], "usage": usage}
    call = {"index": 0, "id": "call_y8Dk1", "type": "function", "function": {"name": "look", "arguments": ""}}
    first = [_chat_chunk({"role": "assistant", "content": "", "refusal": None})]
    first += [_chat_chunk({"content": word}) for word in WORDS]
    first.append(_chat_chunk({"tool_calls": [call]}))
    for piece in _HELD_PIECES:
        part = {"index": 0, "function": {"arguments": piece}}
        first.append(HOLD if piece is None else _chat_chunk({"tool_calls": [part]}))
    second = [_chat_chunk({"role": "assistant", "content": ANSWER}), _chat_chunk({}, "stop"), last]
    return [[*first, _chat_chunk({}, "tool_calls"), last], second]


def _responses_stream(id: str, outputs: Sequence[tuple[dict[str, Any], list[dict[str, Any]]]]) -> Stream:
    response: dict[str, Any] = {
        "id": id, "object": "response", "created_at": 1761234567, "status": "in_progress", "error": None,
        "incomplete_details": None, "instructions": None, "max_output_tokens": None, "model": "gpt-5-mini-2025-08-07",
        "output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": None, "metadata": {},
    }  # fmt: skip
    stream: Stream = [{"type": f"response.{kind}", "response": response} for kind in ("created", "in_progress")]
    for index, (item, events) in enumerate(outputs):
        begun = item | {"status": "in_progress"} | ({"content": []} if "content" in item else {"arguments": ""})
        stream.append({"type": "response.output_item.added", "output_index": index, "item": begun})
        where = {"item_id": item["id"], "output_index": index}
        stream += [event and where | event for event in events]
        stream.append({"type": "response.output_item.done", "output_index": index, "item": item})
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    usage = {"input_tokens": 60, "output_tokens": 40, "total_tokens": 100, **details}
    ended = response | {"status": "completed", "output": [item for item, _ in outputs], "usage": usage}
    stream.append({"type": "response.completed", "response": ended})
    numbers = iter(range(len(stream)))
    return [event and event | {"sequence_number": next(numbers)} for event in stream]


def _responses_text(id: str, words: Sequence[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    text, at = "".join(words), {"content_index": 0}
    part = {"type": "output_text", "annotations": [], "logprobs": [], "text": text}
    events: list[dict[str, Any]] = [{"type": "response.content_part.added", **at, "part": part | {"text": ""}}]
    events += [{"type": "response.output_text.delta", **at, "delta": word, "logprobs": []} for word in words]
    events.append({"type": "response.output_text.done", **at, "text": text, "logprobs": []})
    events.append({"type": "response.content_part.done", **at, "part": part})
    return {"id": id, "type": "message", "status": "completed", "role": "assistant", "content": [part]}, events


def _responses_streams() -> list[Stream]:
    kind = "response.function_call_arguments"
    events = [HOLD if piece is None else {"type": f"{kind}.delta", "delta": piece} for piece in _HELD_PIECES]
    events.append({"type": f"{kind}.done", "arguments": RAW, "name": "look"})
    call = {"id": "fc_0a1", "type": "function_call", "status": "completed", "name": "look", "call_id": "call_y8Dk1"}
    first = _responses_stream("resp_1", [_responses_text("msg_1", WORDS), (call | {"arguments": RAW}, events)])
    return [first, _responses_stream("resp_2", [_responses_text("msg_2", [ANSWER])])]


def _anthropic_stream(id: str, blocks: Sequence[tuple[dict[str, Any], list[dict[str, Any]]]], reason: str) -> Stream:
    usage = {"input_tokens": 60, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 2}
    message: dict[str, Any] = {
        "model": "claude-sonnet-4-5-20250929", "id": id, "type": "message", "role": "assistant", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    stream: Stream = [{"type": "message_start", "message": message}, {"type": "ping"}]
    for index, (block, deltas) in enumerate(blocks):
        stream.append({"type": "content_block_start", "index": index, "content_block": block})
        stream += [delta and {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        stream.append({"type": "content_block_stop", "index": index})
    stop = {"stop_reason": reason, "stop_sequence": None}
    stream.append({"type": "message_delta", "delta": stop, "usage": usage | {"output_tokens": 40}})
    return [*stream, {"type": "message_stop"}]


def _anthropic_streams() -> list[Stream]:
    text = {"type": "text", "text": ""}
    words = [{"type": "text_delta", "text": word} for word in WORDS]
    held: list[dict[str, Any]] = [{"type": "input_json_delta", "partial_json": ""}]
    held += [HOLD if piece is None else {"type": "input_json_delta", "partial_json": piece} for piece in _HELD_PIECES]
    call = {"type": "tool_use", "id": "toolu_01T1x1fJ", "name": "look", "input": {}}
    first = _anthropic_stream("msg_01", [(text, words), (call, held)], "tool_use")
    return [first, _anthropic_stream("msg_02", [(text, [{"type": "text_delta", "text": ANSWER}])], "end_turn")]


def _google_chunk(*parts: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    candidate |= {"finishReason": finish} if finish else {}
    usage = {"promptTokenCount": 60, "candidatesTokenCount": 40, "totalTokenCount": 100}
    return {
        "candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-2.5-flash",
        "responseId": "x1hZaLDkA4",
    }  # fmt: skip


def _google_streams() -> list[Stream]:
    call = {"functionCall": {"name": "look", "args": json.loads(RAW)}}
    first = [*(_google_chunk({"text": word}) for word in WORDS), HOLD, _google_chunk(call, finish="STOP")]
    return [first, [_google_chunk({"text": ANSWER}, finish="STOP")]]


_PROVIDERS: dict[str, tuple[Any, str, str, Callable[[], list[Stream]]]] = {
    "openai": (OpenAIChat, "gpt-5-mini", "/v1", _chat_streams),
    "openai-responses": (OpenAIResponses, "gpt-5-mini", "/v1", _responses_streams),
    "anthropic": (Anthropic, "claude-sonnet-4-5", "", _anthropic_streams),
    "google": (Google, "gemini-2.5-flash", "", _google_streams),
}
FORMATS = tuple(_PROVIDERS)


@asynccontextmanager
async def replayed(format: str, gate: Gate) -> AsyncIterator[str]:
    """The model of a provider whose API replays its streams, one for each request, and holds at ``gate``."""
    provider_class, model, path, build = _PROVIDERS[format]
    streams = build()

    async def handle(_: Request, answer: Answer) -> None:
        answer.start(200, {"content-type": "text/event-stream"})
        for event in streams.pop(0):
            if event is HOLD:
                await gate()
                continue
            named = f"event: {event['type']}\n" if "type" in event else ""
            await answer.write(f"{named}data: {json.dumps(event)}\n\n".encode())
        if format == "openai":
            await answer.write(b"data: [DONE]\n\n")
        await answer.finish()

    async with HttpServer(handle) as server:
        provider = provider_class(f"http://127.0.0.1:{server.port}{path}", "sk-test-0123456789")
        register_provider(f"replayed-{format}", provider)
        try:
            yield f"replayed-{format}:{model}"
        finally:
            registry._providers.pop(f"replayed-{format}")
            await provider.aclose()
