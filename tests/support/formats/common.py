"""What the formats have in common: what a test needs of one, and what becomes of a part in any."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from perdure.ports.model import ModelRequest
from perdure.providers.encoding import render_file_text
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
from tests.support.transcripts import Own

Said = list[tuple[str, tuple[Part, ...]]]
"""Roles and parts: no format has more of a message."""


@dataclass(frozen=True, slots=True)
class Format:
    """One wire format: how it goes there, how it comes back, and what it holds."""

    model: str
    own: Own
    encode: Callable[[ModelRequest, str], bytes]
    decode: Callable[[dict[str, Any], str], list[Message]]
    check: Callable[[bytes], Any]
    """The strict server's rules, on a request without opaque data."""
    holds: Callable[[list[Message]], Said]


def mapped(call: ToolCallPart, call_id: str, name: str, origin: str) -> ToolCallPart:
    own = call.provider == origin
    return ToolCallPart(
        id=call_id,
        name=name,
        arguments=call.arguments,
        provider=origin if own else None,
        opaque=call.opaque if own else None,
    )


def is_kept(part: Part, origin: str) -> bool:
    """Whether it is no thinking or opaque part, or this origin's own, with what is needed to send it back."""
    if isinstance(part, ThinkingPart):
        return part.provider == origin and bool(part.opaque)
    return not isinstance(part, OpaquePart) or part.provider == origin


def bare(part: TextPart, origin: str) -> TextPart:
    return part if part.provider == origin else TextPart(text=part.text)


def merged(said: Iterable[tuple[str, tuple[Part, ...]]], roles: tuple[str, ...]) -> Said:
    """Without empty messages, and with those of one of ``roles`` that follow each other as one."""
    made: Said = []
    for role, group in itertools.groupby(((r, p) for r, p in said if p), key=lambda pair: pair[0]):
        parts = [parts for _, parts in group]
        made += [(role, tuple(itertools.chain(*parts)))] if role in roles else [(role, one) for one in parts]
    return made


def unnamed(file: FilePart) -> FilePart:
    return file.model_copy(update={"name": None}) if file.is_image else file


def as_text(file: FilePart) -> TextPart:
    return TextPart(text=render_file_text(file, {}))


def odd(part: Part, *kinds: str) -> bool:
    return isinstance(part, FilePart) and not part.media_type.startswith(kinds)


def as_result(result: ToolResultPart, call_id: str, name: str) -> ToolResultPart:
    return result.model_copy(update={"call_id": call_id, "name": name, "files": tuple(map(unnamed, result.files))})
