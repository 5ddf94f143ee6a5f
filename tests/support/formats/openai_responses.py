"""Responses."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

from perdure.providers import openai_responses_request
from perdure.providers.encoding import encode_call_id
from perdure.providers.history import decode_messages
from perdure.types.messages import FilePart, Message, Part, TextPart, ThinkingPart, ToolCallPart
from tests.servers.responses import parse
from tests.support.formats.common import Format, Said, as_result, as_text, is_kept, mapped, merged, odd, unnamed
from tests.support.transcripts import Own

GPT = "gpt-test"


def _reasoning(text: str, n: int) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": text}]
    return {"model": GPT, "item": {"type": "reasoning", "id": f"rs_{n}", "summary": summary, "encrypted_content": "x"}}


OWN = Own(
    "openai-responses",
    thinking=_reasoning,
    text=lambda _, n: {"model": GPT, "id": f"msg_{n}", "status": "completed"},
    call=lambda _, n: {"model": GPT, "id": f"fc_{n}", "status": "completed"},
    sealed=lambda _, n: {"model": GPT, "item": {"type": "web_search_call", "id": f"ws_{n}", "status": "completed"}},
)


def holds(messages: list[Message]) -> Said:
    said = [(m.role, tuple(_parts(m))) for m in messages]
    return merged(said, ("assistant",))


def _parts(message: Message) -> Iterator[Part]:
    kinds = ("image/", "application/pdf", "text/")
    match message.role:
        case "user":
            for part in message.parts:
                yield as_text(part) if odd(part, *kinds) else unnamed(part) if isinstance(part, FilePart) else part
        case "assistant":
            yield from _reply(message)
        case _:
            for result in message.tool_results:
                made = as_result(
                    result, encode_call_id(result.call_id, 64), re.sub(r"[^a-zA-Z0-9_-]", "_", result.name)[:64]
                )
                yield made.model_copy(update={"is_error": False})


def _reply(message: Message) -> Iterator[Part]:
    origin = OWN.origin
    made: list[Part] = []
    for key, group in itertools.groupby(message.parts, key=_item):
        parts = list(group)
        if key == "text":
            text = "".join(part.text for part in parts if isinstance(part, TextPart))
            made += [TextPart(text=text)] if text else []
        elif key != "left out":
            made += [
                mapped(p, encode_call_id(p.id, 64), re.sub(r"[^a-zA-Z0-9_-]", "_", p.name)[:64], origin)
                if isinstance(p, ToolCallPart)
                else p
                for p in parts
            ]
    while made and isinstance(made[-1], ThinkingPart):
        made.pop()  # the API takes no reasoning that nothing follows
    yield from made


def _item(part: Part) -> str:
    if isinstance(part, TextPart):
        return "text" if part.provider != OWN.origin else str(part.opaque)
    return "kept" if is_kept(part, OWN.origin) else "left out"


FORMAT = Format(
    GPT,
    OWN,
    lambda request, origin: openai_responses_request.encode_request(request, origin=origin),
    lambda body, origin: decode_messages("openai-responses", body["input"], origin=origin, model=GPT).messages,
    lambda body: parse(body, {}),
    holds,
)
