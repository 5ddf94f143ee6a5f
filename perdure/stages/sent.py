"""A user's message on its way into the transcript: what its sender put into the store is read, bytes become blobs."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from ..errors import TranscriptCorruptedError
from ..ports import Blob, Chain
from ..structured import to_xml
from ..types.files import decoded
from ..types.interface import plain_output
from ..types.messages import BlobRef, ContentPart, FilePart, Message, TextPart
from ..types.wire import NewMessage

logger = logging.getLogger("perdure.worker")

Render = Callable[[str], Awaitable[str]]
"""What is said for the JSON of a typed input."""


async def _plainly(text: str) -> str:
    """Without the agent's code: as XML, field by field."""
    plain = plain_output(text)
    return to_xml(plain) if isinstance(plain, dict) else text


class Sent:
    """The messages that one model call is given. ``blobs`` are the files that came in them, and are to be written."""

    def __init__(self, chain: Chain, store_id: str, render: Render = _plainly) -> None:
        """``render`` gives what the model is shown of a typed input."""
        self._chain = chain
        self._render = render
        self._store_id = store_id
        self.blobs: list[Blob] = []

    async def message(self, item: NewMessage) -> Message:
        """``item`` as the transcript has it.

        What is not there is said to be missing, to the model and to whoever reads the transcript. It never was part of
        the transcript, and waiting for it would keep every other message out for ever.
        """
        content = item.content
        if isinstance(content, str) and item.typed:
            return Message.user(await self._render(content), id=item.id, by=item.by)
        if isinstance(content, str):
            return Message.user(content, id=item.id, by=item.by)
        given = (TextPart(blob=content),) if isinstance(content, BlobRef) else content
        parts = []
        for part in given:
            try:
                parts.append(await self._part(part, item.store_id))
            except TranscriptCorruptedError as error:
                parts.append(_missing(item, part, error))
        if item.typed:
            text = "".join(part.text for part in parts if isinstance(part, TextPart))
            return Message.user(await self._render(text), id=item.id, by=item.by)
        return Message(role="user", parts=tuple(parts), id=item.id, by=item.by)

    async def _part(self, part: ContentPart, store_id: str | None) -> ContentPart:
        if isinstance(part, FilePart) and part.data is not None:
            kept, blobs = by_reference(part)
            self.blobs += blobs
            return kept
        if part.blob is None:
            return part
        if store_id not in (None, self._store_id):
            what = "its text" if isinstance(part, TextPart) else "it"
            raise TranscriptCorruptedError(
                f"{what} ({part.blob.size:,} bytes, blob {part.blob.hash}) is in store {store_id}, "
                f"and the run is kept in store {self._store_id}"
            )
        if isinstance(part, TextPart):
            return TextPart(text=await self._chain.resolve_blob(part.blob))
        read = await self._chain.files([Message(role="user", parts=(part,))])
        size = len(read[part.blob.hash])  # what the sender says of it may be anything
        return part.model_copy(update={"blob": BlobRef(hash=part.blob.hash, size=size)})


def by_reference(part: FilePart) -> tuple[FilePart, list[Blob]]:
    """``part`` with a reference in the place of bytes, and the blob that this takes."""
    if part.data is None:
        return part, []
    blob = Blob.of(decoded(part))
    return part.model_copy(update={"data": None, "blob": blob.ref}), [blob]


def _missing(item: NewMessage, part: ContentPart, error: TranscriptCorruptedError) -> TextPart:
    what = f"message {item.id}" if item.id else "a message"
    if isinstance(part, FilePart):
        what = f"file {part.name} of {what}" if part.name else f"a file of {what}"
    text = f"[{what} could not be read: {error.message}. Its sender has to send it again, under another id.]"
    logger.warning("a run goes on without a message: %s", text)
    return TextPart(text=text)
