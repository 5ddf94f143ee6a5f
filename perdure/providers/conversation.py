"""What the decoders of all wire formats share: a conversation as it becomes messages.

Separate from ``history``, which loads the decoder of a format when it is needed, to avoid an import cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..types.messages import (
    FilePart,
    FinishReason,
    Message,
    Part,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    find_file_flaw,
)
from .encoding import restore_moved_files, strip_parameters

WireObject = Mapping[str, Any]
"""A message or a part of one, as the wire format has it."""


@dataclass(slots=True)
class _Draft:
    role: Role
    parts: list[Part]
    finish_reason: FinishReason | None = None


@dataclass(slots=True)
class Conversation:
    """Collects what a decoder reads, in order. ``origin`` and ``model`` gave the opaque data.

    A decoder raises ``ValueError`` (or ``KeyError``, ``TypeError``, ``AttributeError``) for what it cannot read.
    """

    origin: str
    model: str | None = None
    prompts: list[str] = field(default_factory=list)
    """The system messages at the beginning of the conversation."""
    _drafts: list[_Draft] = field(default_factory=list)
    _tool_names: dict[str, str] = field(default_factory=dict)
    """By the ids of the calls."""

    def add_system(self, text: str) -> None:
        """Add a system message; at the beginning of the conversation it is part of the system prompt."""
        if self._drafts:
            self._drafts.append(_Draft("system", [TextPart(text=text)]))
        elif text:
            self.prompts.append(text)

    def add_user(self, parts: Iterable[TextPart | FilePart]) -> None:
        """Add a message of the user."""
        self._drafts.append(_Draft("user", list(parts)))

    def add_reply(
        self, parts: Iterable[Part], *, joined: bool = False, finish_reason: FinishReason | None = None
    ) -> None:
        """Add a message of the model; ``joined`` to the one before if that is the model's too."""
        parts = list(parts)
        self._tool_names |= {part.id: part.name for part in parts if isinstance(part, ToolCallPart)}
        if joined and self._get_last_role() == "assistant":
            self._drafts[-1].parts += parts
        else:
            self._drafts.append(_Draft("assistant", parts, finish_reason))

    def add_result(self, call_id: str, content: str, *, files: Iterable[FilePart] = (), is_error: bool = False) -> None:
        """Add the result of a call. Consecutive results are one message."""
        if call_id not in self._tool_names:
            raise ValueError(f"it has the result of call {call_id!r:.100}, but no message before it makes that call")
        name = self._tool_names[call_id]
        if self._get_last_role() != "tool":
            self._drafts.append(_Draft("tool", []))
        self._drafts[-1].parts.append(
            ToolResultPart(call_id=call_id, name=name, content=content, files=tuple(files), is_error=is_error)
        )

    def take_back_files(self, parts: list[TextPart | FilePart]) -> list[TextPart | FilePart]:
        """Return the files that were moved out of results (``encoding.build_moved_file_parts``) to these; the rest of
        ``parts``."""
        if self._get_last_role() != "tool" or not any(isinstance(part, FilePart) for part in parts):
            return parts
        draft = self._drafts[-1]
        results, rest = restore_moved_files([part for part in draft.parts if isinstance(part, ToolResultPart)], parts)
        draft.parts[:] = results
        return list(rest)

    def _get_last_role(self) -> Role | None:
        return self._drafts[-1].role if self._drafts else None

    def build_messages(self) -> list[Message]:
        """The whole conversation."""
        return [
            Message(
                role=draft.role,
                parts=tuple(draft.parts),
                model=self.model if draft.role == "assistant" else None,
                finish_reason=draft.finish_reason,
            )
            for draft in self._drafts
        ]


def drop_nulls(value: WireObject) -> dict[str, Any]:
    """``value`` without fields that are null: SDKs write those that are not set."""
    return {key: inner for key, inner in value.items() if inner is not None}


def build_imported_file(
    media_type: str, *, data: str | None = None, url: str | None = None, name: str | None = None
) -> FilePart:
    """A file of an imported message. Raises ``ValueError`` for one that no message may have."""
    part = FilePart(media_type=strip_parameters(media_type), data=data, url=url, name=name or None)
    if flaw := find_file_flaw(part):
        raise ValueError(f"a file in it cannot be imported: {flaw}")
    return part


def guess_image_type(url: str, default: str) -> str:
    """The media type of the image at ``url``: the formats do not give it. ``default`` if its ending does not tell."""
    ending = url.partition("?")[0].rpartition(".")[2].lower().replace("jpg", "jpeg")
    return f"image/{ending}" if ending in ("jpeg", "png", "gif", "webp") else default
