"""Google's generateContent."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.providers import google_request
from perdure.providers.history import decode_messages
from perdure.providers.tool_schemas import GOOGLE, encode_name
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
from tests.servers.google import parse
from tests.support.formats.common import Format, Said, as_text, bare, is_kept, mapped, merged, odd
from tests.support.transcripts import Own

OWN = Own(
    "google",
    thinking=lambda _, n: {"thoughtSignature": f"dA{n}=="},
    text=lambda _, n: {"thoughtSignature": f"dA{n}=="},
    call=lambda _, n: {"thoughtSignature": f"dA{n}=="},
    sealed=lambda _, n: {"executableCode": {"language": "PYTHON", "code": str(n)}},
)


def holds(messages: list[Message]) -> Said:
    return merged(((m.role, tuple(_parts(m))) for m in messages), ("user", "assistant"))


def _parts(message: Message) -> Iterator[Part]:
    for part in message.parts:
        match part:
            case TextPart() if part.text or part.provider == OWN.origin:
                yield _text(part)
            case FilePart():
                unknown = odd(part, "image/", "application/pdf")
                yield as_text(part) if unknown else part.model_copy(update={"name": None})
            case ToolCallPart():
                yield mapped(part, part.id, encode_name(GOOGLE, part.name), OWN.origin)
            case ToolResultPart():
                yield part.model_copy(update={"name": encode_name(GOOGLE, part.name)})
            case ThinkingPart() | OpaquePart() if is_kept(part, OWN.origin):
                yield part


def _text(part: TextPart) -> Part:
    made = bare(part, OWN.origin)
    if not part.text:  # a signature alone: the API gives it so, and so it is kept
        return OpaquePart(provider=OWN.origin, data={"text": "", **(part.opaque or {})})
    return made


FORMAT = Format(
    "gemini-3-pro",
    OWN,
    lambda request, origin: google_request.encode_request(request, origin=origin),
    lambda body, origin: decode_messages("google", body["contents"], origin=origin).messages,
    lambda body: parse(body, "gemini-3-pro"),
    holds,
)
