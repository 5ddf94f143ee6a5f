"""Files that a hook puts into a message: their bytes become blobs, as those that a client sends do."""

from __future__ import annotations

from collections.abc import Iterable

from ..ports import Blob
from ..types.files import decoded
from ..types.messages import FilePart, Message, Part


def by_reference(messages: Iterable[Message]) -> tuple[tuple[Message, ...], list[Blob]]:
    """``messages`` with references in the place of bytes, and the blobs. Raises ``InvalidInputError``."""
    blobs: list[Blob] = []

    def kept(part: Part) -> Part:
        if not isinstance(part, FilePart) or part.data is None:
            return part
        blobs.append(Blob.of(decoded(part)))
        return part.model_copy(update={"data": None, "blob": blobs[-1].ref})

    return tuple(
        message.model_copy(update={"parts": tuple(map(kept, message.parts))})
        if any(isinstance(part, FilePart) and part.data is not None for part in message.parts)
        else message
        for message in messages
    ), blobs
