"""A user's message on its way into the transcript: blobs of text from its sender are read, and bytes become blobs."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..agent.xml import to_xml
from ..errors import TranscriptCorruptedError
from ..ports.store import Blob, TranscriptChain, move_file_to_blob
from ..types.interface import parse_output
from ..types.messages import BlobRef, ContentPart, FilePart, Message, TextPart
from ..types.wire import NewMessage

logger = logging.getLogger("perdure.worker")


RenderInput = Callable[[str, Mapping[str, Any]], Awaitable[str]]


def render_as_xml(text: str) -> str:
    """Render the JSON of a typed input as XML, field by field, without the agent's code."""
    plain = parse_output(text)
    return to_xml(plain) if isinstance(plain, dict) else text


class IncomingMessages:
    """Builds the new messages of one model call. ``blobs`` are the files that came in them, and are to be written."""

    def __init__(
        self, chain: TranscriptChain, store_id: str, agent: str = "", render: RenderInput | None = None
    ) -> None:
        """``render`` renders a typed input of ``agent`` as text for the model; by default as XML."""
        self._chain = chain
        self._agent, self._render_input = agent, render
        self._store_id = store_id
        self.blobs: list[Blob] = []

    async def build_message(self, item: NewMessage) -> Message:
        """Build the transcript's message of ``item``.

        Content that cannot be read is replaced by a text that says so, to the model and to readers of the transcript.
        It never was part of the transcript, and waiting for it would block every other message.
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
                parts.append(await self._resolve_part(part, item.store_id))
            except TranscriptCorruptedError as error:
                parts.append(_build_missing_part(item, part, error))
        if item.typed:
            text = "".join(part.text for part in parts if isinstance(part, TextPart))
            return Message.user(await self._render(text), id=item.id, by=item.by)
        return Message(role="user", parts=tuple(parts), id=item.id, by=item.by)

    async def _render(self, text: str) -> str:
        plain = parse_output(text)
        if self._render_input is None or not isinstance(plain, dict):
            return render_as_xml(text)
        return await self._render_input(self._agent, plain)

    async def _resolve_part(self, part: ContentPart, store_id: str | None) -> ContentPart:
        if isinstance(part, FilePart) and part.data is not None:
            return move_file_to_blob(part, self.blobs)
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
        read = await self._chain.load_files([Message(role="user", parts=(part,))])
        size = len(read[part.blob.hash])  # the size that the sender gave may be wrong
        return part.model_copy(update={"blob": BlobRef(hash=part.blob.hash, size=size)})


def _build_missing_part(item: NewMessage, part: ContentPart, error: TranscriptCorruptedError) -> TextPart:
    what = f"message {item.id}" if item.id else "a message"
    if isinstance(part, FilePart):
        what = f"file {part.name} of {what}" if part.name else f"a file of {what}"
    text = f"[{what} could not be read: {error.message}. Its sender has to send it again, under another id.]"
    logger.warning("a run continues without a message: %s", text)
    return TextPart(text=text)
