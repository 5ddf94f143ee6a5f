"""What is said, as it is sent: long texts and the bytes of files go into the store, and a message refers to them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from .errors import InvalidInputError
from .ports import Blob, Commit
from .types.files import Asked, Content, Dataclass, File, pieces
from .types.interface import Override, UserMessage
from .types.messages import BlobRef, ContentPart, FilePart, TextPart, clean
from .types.plain import as_plain

if TYPE_CHECKING:
    from .client import Client

SENT_BYTES = 128 * 1024
"""Of texts in one message; more go by way of the store: Temporal refuses what is larger than 2 MB, and history would
keep it."""

_WAY_OUT = "Give the client store_url=… or set PERDURE_STORE_URL to the store of the workers."

Uploaded = str | BlobRef | tuple[ContentPart, ...]


async def as_message(
    client: Client,
    content: Asked | None,
    facts: dict[str, Any],
    override: Override | Mapping[str, Any] | None = None,
) -> UserMessage:
    """See ``Client.as_message``. ``facts`` are the message's other fields."""
    try:
        message = UserMessage.model_validate({"content": None, **facts})
    except ValidationError as error:
        raise _invalid(error, "") from None
    if override is not None:
        message = message.model_copy(update={"override": _override(override)})
    if content is None:
        return message
    if isinstance(content, Mapping | BaseModel | Dataclass):
        return await _with_input(client, message, content)
    said, store_id = await uploaded(client, content)
    return message.model_copy(update={"content": said, "store_id": store_id})


async def _with_input(client: Client, message: UserMessage, value: object) -> UserMessage:
    """An input travels as plain JSON, for anybody to read; a long one as text does."""
    try:
        plain = as_plain(value)
    except ValueError as error:
        raise InvalidInputError(f"the input cannot be written as JSON: {error}", hint="Give plain values.") from None
    text = json.dumps(plain, ensure_ascii=False)
    if len(text) * 4 <= SENT_BYTES or len(text.encode()) <= SENT_BYTES:
        return message.model_copy(update={"input": plain})
    said, store_id = await uploaded(client, text)
    return message.model_copy(update={"content": said, "store_id": store_id, "typed": True})


def _override(given: Override | Mapping[str, Any]) -> Override:
    if isinstance(given, Override):
        return given
    try:
        return Override.model_validate(dict(given))
    except ValidationError as error:
        raise _invalid(error, "override.") from None


def _invalid(error: ValidationError, where: str) -> InvalidInputError:
    problem = error.errors(include_url=False)[0]
    return InvalidInputError(f"{where}{'.'.join(map(str, problem['loc']))}: {problem['msg']}")


async def uploaded(client: Client, content: Content) -> tuple[Uploaded, str | None]:
    """``content`` as a message has it, and the id of the store that holds some of it, if any does.

    Raises ``InvalidInputError`` for what is no message, and where a store is needed and the client has none.
    """
    blobs: list[Blob] = []
    said: Uploaded
    if isinstance(content, str):
        text = _text(clean(content), SENT_BYTES, blobs)
        said = text.blob or text.text
    else:
        said = await _parts(pieces(content), blobs)
    if not blobs:
        return said, None
    if client.store_url is None:
        _refuse(said, blobs)
    store = await client.store(create=True)
    await store.commit(Commit(blobs=blobs))
    return said, store.store_id


async def _parts(content: list[str | File], blobs: list[Blob]) -> tuple[ContentPart, ...]:
    parts: list[ContentPart] = []
    left = SENT_BYTES
    for piece in content:
        if isinstance(piece, str):
            part = _text(clean(piece), left, blobs)
            left -= len(part.text.encode())
            parts.append(part)
        elif piece.data is None:
            parts.append(piece.part)
        else:
            blob = await asyncio.to_thread(Blob.of, piece.data)
            blobs.append(blob)
            parts.append(FilePart(media_type=piece.media_type, name=piece.name, blob=blob.ref))
    return tuple(parts)


def _text(text: str, room: int, blobs: list[Blob]) -> TextPart:
    if len(text) * 4 <= room or len(text.encode()) <= room:
        return TextPart(text=text)
    blob = Blob.of(text)
    blobs.append(blob)
    return TextPart(blob=blob.ref)


def _refuse(said: Uploaded, blobs: list[Blob]) -> None:
    if not isinstance(said, str | BlobRef) and any(isinstance(part, FilePart) and part.blob for part in said):
        raise InvalidInputError(
            "files go by way of the store, and this client has none", hint=f"{_WAY_OUT} Or send File.at(url)."
        )
    size = sum(len(blob.body) for blob in blobs)
    raise InvalidInputError(
        f"the message has {size:,} bytes; more than {SENT_BYTES:,} go by way of the store, and this client has none",
        hint=_WAY_OUT,
    )
