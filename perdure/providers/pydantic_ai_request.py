"""Our messages as pydantic-ai's. Imported with the first call, as it imports pydantic-ai."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai import messages as theirs
from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponsePart

from ..ports import ModelRequest
from ..types.messages import (
    FilePart,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    clean,
)
from .encoding import encode_json
from .foreign import file_bytes, loaded, own, provider_ids, rendered, wire_id

_IDS = re.compile(r"[a-zA-Z0-9_-]+")
_LONGEST_ID = 40
"""What every vendor takes as the id of a call."""
_TAKES: dict[str, tuple[str, type[theirs.ImageUrl | theirs.AudioUrl | theirs.VideoUrl | theirs.DocumentUrl]]] = {
    "image": ("supports_image_input", theirs.ImageUrl),
    "audio": ("supports_audio_file_input", theirs.AudioUrl),
    "video": ("supports_video_input", theirs.VideoUrl),
}
_DOCUMENT: tuple[str, type[theirs.DocumentUrl]] = ("supports_document_input", theirs.DocumentUrl)
response_part: TypeAdapter[Any] = TypeAdapter(ModelResponsePart)
"""One part of a reply, from JSON and to it."""


def encode_messages(request: ModelRequest, origin: str, profile: Mapping[str, Any]) -> list[ModelMessage]:
    """The conversation: messages that follow each other on the user's side are one, as some vendors ask for.

    Opaque data goes along where it came from ``origin``. Files are given as the model's ``profile`` takes them, and as
    text where it does not. Raises ``BadRequestError`` for content that was not loaded.
    """
    encoder = _Encoder(request, origin, profile)
    said: list[ModelMessage] = []
    ours: list[ModelRequestPart] = []
    if request.system:
        ours.append(theirs.SystemPromptPart(clean(request.system)))
    for message in request.messages:
        if message.role != "assistant":
            ours.extend(encoder.request(message))
            continue
        if parts := list(encoder.response(message)):
            if ours:
                said.append(theirs.ModelRequest(ours))
                ours = []
            said.append(theirs.ModelResponse(parts, model_name=message.model))
    if ours:
        said.append(theirs.ModelRequest(ours))
    return said


class _Encoder:
    def __init__(self, request: ModelRequest, origin: str, profile: Mapping[str, Any]) -> None:
        self._files = request.files
        self._ids = provider_ids(request.messages, origin)
        self._origin = origin
        self._profile = profile

    def request(self, message: Message) -> Iterator[ModelRequestPart]:
        if message.role == "system":
            yield theirs.SystemPromptPart(clean(message.text))
            return
        for part in message.tool_results:
            yield self._result(part)
        content = [self._content(part) for part in message.parts if isinstance(part, TextPart | FilePart)]
        texts = [item for item in content if isinstance(item, str)]
        if content:
            yield theirs.UserPromptPart("\n\n".join(texts) if len(texts) == len(content) else content)

    def _result(self, part: ToolResultPart) -> theirs.ToolReturnPart[Any]:
        text = clean(loaded(part.content, part))
        content: Any = [*([text] if text else []), *map(self._file, part.files)] if part.files else text
        return theirs.ToolReturnPart(
            tool_name=part.name,
            content=content,
            tool_call_id=self._id(part.call_id),
            outcome="failed" if part.is_error else "success",
        )

    def _content(self, part: TextPart | FilePart) -> str | theirs.MultiModalContent:
        return clean(loaded(part.text, part)) if isinstance(part, TextPart) else self._file(part)

    def _file(self, file: FilePart) -> str | theirs.MultiModalContent:
        flag, url_type = _TAKES.get(file.media_type.partition("/")[0], _DOCUMENT)
        content = file_bytes(file, self._files)
        binary = theirs.BinaryContent(content or b"", media_type=file.media_type)
        known = binary.is_image or binary.is_audio or binary.is_video or binary.is_document
        if not known or not self._profile.get(flag, True):
            return clean(rendered(file, self._files))
        if content is None:
            return url_type(file.url or "", media_type=file.media_type)
        return binary

    def response(self, message: Message) -> Iterator[ModelResponsePart]:
        for part in message.parts:
            if (encoded := self._said(part)) is not None:
                yield encoded

    def _said(self, part: Part) -> ModelResponsePart | None:
        if isinstance(part, OpaquePart):
            return _restored(data) if (data := own(part, self._origin)) is not None else None
        if isinstance(part, ThinkingPart):
            if part.provider != self._origin:
                return None
            return _restored({"part_kind": "thinking", "content": part.text, **(part.opaque or {})})
        if isinstance(part, TextPart):
            if not (text := loaded(part.text, part)):
                return None
            return _restored({"part_kind": "text", "content": text, **(own(part, self._origin) or {})})
        if isinstance(part, ToolCallPart):
            call = {"tool_name": part.name, "args": part.arguments, "tool_call_id": self._id(part.id)}
            return _restored({"part_kind": "tool-call", **call, **(own(part, self._origin) or {})})
        if isinstance(part, FilePart):
            content = file_bytes(part, self._files)
            return theirs.TextPart(clean(rendered(part, self._files))) if content is None else _picture(part, content)
        return None

    def _id(self, call_id: str) -> str:
        return self._ids.get(call_id) or wire_id(call_id, _LONGEST_ID, _IDS)


def _picture(part: FilePart, content: bytes) -> theirs.FilePart:
    return theirs.FilePart(theirs.BinaryContent(content, media_type=part.media_type))


def _restored(data: Mapping[str, Any]) -> ModelResponsePart:
    part: ModelResponsePart = response_part.validate_json(
        encode_json(data)
    )  # refuses and cleans as for our own formats
    return part
