"""Messages of Anthropic."""

from __future__ import annotations

import re
from collections.abc import Iterator

from perdure.providers import anthropic_request
from perdure.providers.encoding import encode_call_id
from perdure.providers.history import decode_messages
from perdure.types.messages import (
    FilePart,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from tests.servers.anthropic import parse, sign
from tests.support.formats.common import Format, Said, as_result, as_text, bare, is_kept, mapped, merged, odd, unnamed
from tests.support.transcripts import Own

OWN = Own(
    "anthropic",
    thinking=lambda text, _: {"signature": sign(text)},
    text=lambda text, _: {"citations": [{"type": "char_location", "cited_text": text}]},
    call=lambda *_: {"caller": {"type": "direct"}},
    sealed=lambda _, n: {"type": "redacted_thinking", "data": f"sealed/{n}"},
)


def holds(messages: list[Message]) -> Said:
    return merged(((m.role, tuple(_parts(m))) for m in messages), ("user", "assistant"))


def _parts(message: Message) -> Iterator[Part]:
    for part in message.parts:
        match part:
            case TextPart() if part.text.strip():
                yield bare(part, OWN.origin)
            case FilePart():
                if part.media_type.startswith("text/"):
                    yield part.model_copy(update={"media_type": "text/plain"})
                else:
                    yield as_text(part) if odd(part, "image/", "application/pdf") else unnamed(part)
            case ToolCallPart():
                yield mapped(part, *_names(part.id, part.name), OWN.origin)
            case ToolResultPart():
                made = as_result(part, *_names(part.call_id, part.name))
                text = part.content if part.content.strip() else "Error." if part.is_error else ""
                yield made.model_copy(update={"content": text})
            case ThinkingPart() | OpaquePart() if is_kept(part, OWN.origin):
                yield part


def _names(call_id: str, name: str) -> tuple[str, str]:
    return encode_call_id(call_id, 64, re.compile(r"[a-zA-Z0-9_-]+")), re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64]


FORMAT = Format(
    "claude-sonnet-4-6",
    OWN,
    lambda request, origin: anthropic_request.encode_request(request, origin=origin).body,
    lambda body, origin: decode_messages("anthropic", body["messages"], origin=origin).messages,
    lambda body: parse(body, version="2026-10-21", beta=""),
    holds,
)
