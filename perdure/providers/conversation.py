"""A conversation in a wire format as it becomes messages of ours: what the decoders of all formats share.

A module of its own, below them: ``history``, which loads the decoder of a format when it is asked for, stands above.
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
from .encoding import restore_moved_files

Wire = Mapping[str, Any]


@dataclass(slots=True)
class _Draft:
    role: Role
    parts: list[Part]
    finish_reason: FinishReason | None = None


@dataclass(slots=True)
class Conversation:
    """Takes what a decoder reads, in order. ``origin`` and ``model`` say who gave the opaque data.

    A decoder raises ``ValueError`` (or ``KeyError``, ``TypeError``, ``AttributeError``) for what it cannot read.
    """

    origin: str
    model: str | None = None
    prompts: list[str] = field(default_factory=list)
    """The system messages that lead the conversation."""
    _drafts: list[_Draft] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)
    """Of the tools that were called, by the ids of the calls."""

    def add_system(self, text: str) -> None:
        """A system message: part of the system prompt where the conversation has not begun yet."""
        if self._drafts:
            self._drafts.append(_Draft("system", [TextPart(text=text)]))
        elif text:
            self.prompts.append(text)

    def add_user(self, parts: Iterable[TextPart | FilePart]) -> None:
        """A message of the user."""
        self._drafts.append(_Draft("user", list(parts)))

    def add_reply(
        self, parts: Iterable[Part], *, joined: bool = False, finish_reason: FinishReason | None = None
    ) -> None:
        """A message of the model; ``joined`` to the one before it, where that is the model's too."""
        parts = list(parts)
        self._names |= {part.id: part.name for part in parts if isinstance(part, ToolCallPart)}
        if joined and self._drafts and self._drafts[-1].role == "assistant":
            self._drafts[-1].parts += parts
        else:
            self._drafts.append(_Draft("assistant", parts, finish_reason))

    def add_result(self, call_id: str, content: str, *, files: Iterable[FilePart] = (), is_error: bool = False) -> None:
        """The result of a call. Results that follow each other are one message."""
        if call_id not in self._names:
            raise ValueError(f"it has the result of call {call_id!r:.100}, and no message before it makes that call")
        result = ToolResultPart(
            call_id=call_id, name=self._names[call_id], content=content, files=tuple(files), is_error=is_error
        )
        if not self._follows_results:
            self._drafts.append(_Draft("tool", []))
        self._drafts[-1].parts.append(result)

    def take_back_files(self, parts: list[TextPart | FilePart]) -> list[TextPart | FilePart]:
        """Give the files in ``parts`` that were moved out of results (``encoding.build_moved_file_parts``) back to
        these; the rest."""
        if not self._follows_results or not any(isinstance(part, FilePart) for part in parts):
            return parts
        draft = self._drafts[-1]
        results, rest = restore_moved_files([part for part in draft.parts if isinstance(part, ToolResultPart)], parts)
        draft.parts[:] = results
        return list(rest)

    @property
    def _follows_results(self) -> bool:
        return bool(self._drafts) and self._drafts[-1].role == "tool"

    def messages(self) -> list[Message]:
        """All of it."""
        return [
            Message(
                role=draft.role,
                parts=tuple(draft.parts),
                model=self.model if draft.role == "assistant" else None,
                finish_reason=draft.finish_reason,
            )
            for draft in self._drafts
        ]


def without_nulls(value: Wire) -> dict[str, Any]:
    """``value`` without fields that are null: SDKs write those that are not set."""
    return {key: inner for key, inner in value.items() if inner is not None}


def imported_file(
    media_type: str, *, data: str | None = None, url: str | None = None, name: str | None = None
) -> FilePart:
    """A file of an imported message. Raises ``ValueError`` for one that no message may have."""
    part = FilePart(media_type=media_type.partition(";")[0].strip().lower(), data=data, url=url, name=name or None)
    if why := find_file_flaw(part):
        raise ValueError(f"a file in it cannot be taken over: {why}")
    return part
