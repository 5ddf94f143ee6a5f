"""What a message may consist of: text, or parts, each a text or a file."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic_core import ErrorDetails

from ..types.files import unfit_file
from ..types.interface import UserMessage
from ..types.messages import BlobRef, ContentPart, FilePart, TextPart, clean

Content = str | BlobRef | tuple[ContentPart, ...]


def unfit_content(content: Content | None) -> str | None:
    """Why ``content`` is none that can be given to a model, if so."""
    if content is None or isinstance(content, str | BlobRef):
        return None
    if not content:
        return "content: a list of parts has at least one"
    for number, part in enumerate(content):
        if why := unfit_file(part) if isinstance(part, FilePart) else _unfit_text(part):
            return f"content.{number}: {why}"
    return None


def _unfit_text(part: TextPart) -> str | None:
    if (part.blob is None) == (part.text == ""):
        return "a text has exactly one of text and blob"
    if part.provider is not None or part.opaque is not None:
        return "opaque: what is for a provider alone stands in its replies, not in a message"
    return None


def cleaned(content: Content) -> Content:
    """``content`` as it can be carried on: text without lone surrogates, media types in lower case."""
    if isinstance(content, str):
        return clean(content)
    return content if isinstance(content, BlobRef) else tuple(_cleaned(part) for part in content)


def _cleaned(part: ContentPart) -> ContentPart:
    if isinstance(part, TextPart):
        return part.model_copy(update={"text": clean(part.text)})
    name = clean(part.name) if part.name else None
    return part.model_copy(update={"media_type": part.media_type.lower(), "name": name})


def carried(message: UserMessage) -> UserMessage:
    """``message`` as a run carries it: an input is its JSON, a text like others."""
    if message.input is None:
        return message
    text = json.dumps(message.input, ensure_ascii=False)
    return message.model_copy(update={"content": text, "input": None, "typed": True})


def kept_apart(content: Content | None) -> bool:
    """Whether some of it is in a store."""
    if content is None or isinstance(content, str):
        return False
    return isinstance(content, BlobRef) or any(part.blob is not None for part in content)


def nearest(problems: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Of what pydantic says of all forms that a message may have, that of the form which it comes nearest to."""
    depth = max(len(problem["loc"]) for problem in problems)
    return [problem for problem in problems if len(problem["loc"]) == depth]


def in_part(problem: ErrorDetails) -> bool:
    """Whether a part of a message is wrong."""
    return "content" in problem["loc"] and any(isinstance(at, int) for at in problem["loc"])


def place(problem: ErrorDetails) -> str:
    """Where something is wrong; in a part by the names of fields alone: ``content.0.media_type``."""
    said: list[str] = []
    before: int | str = ""
    for at in problem["loc"]:
        tag = isinstance(before, int) and at in ("text", "file")
        if not in_part(problem) or isinstance(at, int) or (at.isidentifier() and at.islower() and not tag):
            said.append(str(at))
        before = at
    return ".".join(said)
