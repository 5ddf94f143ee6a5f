"""Events of tool calls."""

from __future__ import annotations

import operator
from typing import Any, Literal

from pydantic import Field

from .event import Event
from .messages import BlobRef, FilePart


class ToolStarted(Event):
    """A tool begins."""

    type: Literal["tool.started"] = "tool.started"
    call_id: str
    name: str
    arguments: dict[str, Any] | None = None
    """None where they are large: they are in the transcript."""
    child_context_id: str | None = Field(default=None, exclude_if=lambda given: given is None)
    """Of a call of another agent: the id of its run, which has events of its own."""
    background: bool = Field(default=False, exclude_if=operator.not_)
    """That run goes on in background: the call ends as soon as it has begun."""


class ToolProgress(Event):
    """What a tool says of itself while it runs (``ctx.progress``)."""

    type: Literal["tool.progress"] = "tool.progress"
    call_id: str
    name: str
    message: str = ""
    data: Any = None
    """Plain JSON of the author's."""


class ToolCompleted(Event):
    """What a tool call came to."""

    type: Literal["tool.completed"] = "tool.completed"
    call_id: str
    name: str
    content: str = ""
    """What the model is told; empty where it is in ``blob``."""
    blob: BlobRef | None = None
    files: tuple[FilePart, ...] = ()
    is_error: bool = False
    answered_by: str | None = None
    """Of a callback: who gave it."""
