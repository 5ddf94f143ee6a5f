"""Chat completions."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.providers import openai_chat_request
from perdure.providers.encoding import encode_call_id, encode_tool_name
from perdure.providers.history import decode_messages
from perdure.types.messages import FilePart, Message, Part, TextPart, ThinkingPart
from tests.servers.chat import parse
from tests.support.formats.common import Format, Said, as_result, as_text, is_kept, mapped, odd, unnamed
from tests.support.transcripts import Own

CHAT_FIELD = {"field": "reasoning_content"}
OWN = Own(
    "openai@compatible.test",
    thinking=lambda *_: CHAT_FIELD,
    call=lambda _, n: {"extra_content": {"google": {"thought_signature": str(n)}}},
)


def holds(messages: list[Message]) -> Said:
    return [(m.role, tuple(_parts(m))) for m in messages]


def _parts(message: Message) -> Iterator[Part]:
    match message.role:
        case "user":
            parts = [as_text(p) if odd(p, "image/", "application/pdf") else p for p in message.parts]
            if any(isinstance(part, FilePart) for part in message.parts):
                yield from (unnamed(p) if isinstance(p, FilePart) else p for p in parts if getattr(p, "text", "x"))
            else:
                yield TextPart(text=message.text)
        case "assistant":
            thoughts = [p for p in message.parts if isinstance(p, ThinkingPart) and is_kept(p, OWN.origin)]
            if thoughts:
                yield ThinkingPart(text="".join(part.text for part in thoughts), provider=OWN.origin, opaque=CHAT_FIELD)
            if message.text:
                yield TextPart(text=message.text)
            for call in message.tool_calls:
                yield mapped(call, encode_call_id(call.id, 40), encode_tool_name(call.name), OWN.origin)
        case _:
            for result in message.tool_results:
                made = as_result(result, encode_call_id(result.call_id, 40), encode_tool_name(result.name))
                yield made.model_copy(update={"is_error": False})


FORMAT = Format(
    "gpt-5",
    OWN,
    lambda request, origin: openai_chat_request.encode_request(request, origin=origin),
    lambda body, origin: decode_messages("openai", body["messages"], origin=origin).messages,
    parse,
    holds,
)
