"""Events of model calls."""

from __future__ import annotations

from typing import Any, Literal

from .event import Event
from .messages import BlobRef, Data, FinishReason, Usage

Span = tuple[int, int]
"""First and last number of a row of events."""


class ModelStarted(Event):
    """A model is asked. Of one model call there may be several: an attempt, or a model of a chain, may fail."""

    type: Literal["model.started"] = "model.started"
    iteration: int = 0
    model: str = ""
    """``"<provider>:<model>"``."""


class ModelDelta(Event):
    """More of a reply. It counts until ``model.retracted`` or ``model.completed`` says otherwise."""

    type: Literal["model.delta"] = "model.delta"
    iteration: int = 0
    kind: Literal["text", "thinking", "tool_call"] = "text"
    text: str = ""
    """More text or thinking, or more of a tool call's arguments as raw JSON."""
    offset: int = 0
    """Characters of the same text, thinking or arguments before this."""
    index: int = 0
    """Of a tool call: its place among the calls of the reply."""
    call_id: str = ""
    name: str = ""
    inside: str | None = None
    """Of ``__finish__``, where the output is no object: the argument that has it."""
    partial: Any = None
    """Of a tool call: its arguments as far as they can be read, an object of which fields may be missing; of
    ``__finish__`` the output so far. Read from all deltas of the call so far, by whoever follows; not stored."""


class CallSaid(Data):
    """A tool call of a reply."""

    id: str
    name: str
    arguments: dict[str, Any] | None = None
    """None where they are large: they are in the transcript."""


class ModelCompleted(Event):
    """The reply is whole and recorded. What it says counts in place of every delta that ``replaces`` names."""

    type: Literal["model.completed"] = "model.completed"
    iteration: int = 0
    model: str = ""
    """As the API names the model that answered; empty where none was asked, and a hook or a step gave the reply."""
    text: str = ""
    """The reply's text; empty where it is in ``blob``."""
    blob: BlobRef | None = None
    calls: tuple[CallSaid, ...] = ()
    finish_reason: FinishReason = "stop"
    usage: Usage = Usage()
    cost_usd: float | None = None
    head: str | None = None
    """The transcript's node that ends with the reply."""
    replaces: tuple[Span, ...] = ()
    """Numbers of events that are gone: the only ones that a reader may miss."""


class ModelRetracted(Event):
    """What was streamed of a reply does not count: the attempt failed, or its worker was lost."""

    type: Literal["model.retracted"] = "model.retracted"
    iteration: int = 0
    retracts: tuple[Span, ...] = ()
    """Numbers of the deltas that do not count."""
    reason: str = ""
    """Class name of the error, ``WorkerLost``, ``Interrupted`` or ``WorkerStopped``."""
