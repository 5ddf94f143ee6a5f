"""The events of a run, for programs that follow one: every class, their union ``Event``, and how JSON becomes one.

``run.events()`` and ``turn.events()`` yield them. Read ``event.type``, or match the classes::

    match event:
        case ModelDelta(kind="text"):
            print(event.text, end="")
        case ToolStarted():
            print(f"[{event.name}]")
        case _:  # also the types of a newer perdure
            pass

As JSON an event is ``event.model_dump(mode="json")``, a line of ``perdure events -o jsonl``; :func:`parse_event` reads
both.

What stays: a ``type``, its fields and their meaning, in later releases and of stored events; ``seq`` as a position.
What may come in any release: new types, and new fields with a default, so skip a type and ignore a field that you do
not know. Texts for people (``reason``, ``error``, ``what``) may change; ``error_type`` is a class name of
:mod:`perdure.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import from_json

from ._lazy import NameLoader
from .errors import InvalidInputError
from .types.subagents import PathStep
from .types.validation_errors import describe_validation_error

if TYPE_CHECKING:
    from .types.events import (
        EVENT_TYPES,
        ApprovalDecided,
        ApprovalReminded,
        ApprovalRequested,
        ApprovalRevoked,
        BranchCompleted,
        BranchStarted,
        CallSaid,
        ConversationCompacted,
        ErrorEvent,
        Event,
        EventBase,
        LimitReached,
        MessageInjected,
        MessageWithheld,
        ModelCompleted,
        ModelDelta,
        ModelRetracted,
        ModelStarted,
        QuestionAnswered,
        QuestionAsked,
        RunEvent,
        Span,
        StepTaken,
        ToolCompleted,
        ToolProgress,
        ToolStarted,
        TurnEvent,
    )
    from .types.events import build_worker_lost_retraction as build_worker_lost_retraction
    from .types.events import decode_event as decode_event
    from .types.events import encode_event_body as encode_event_body

__all__ = [
    "EVENT_TYPES",
    "ApprovalDecided",
    "ApprovalReminded",
    "ApprovalRequested",
    "ApprovalRevoked",
    "BranchCompleted",
    "BranchStarted",
    "CallSaid",
    "ConversationCompacted",
    "ErrorEvent",
    "Event",
    "EventBase",
    "LimitReached",
    "MessageInjected",
    "MessageWithheld",
    "ModelCompleted",
    "ModelDelta",
    "ModelRetracted",
    "ModelStarted",
    "PathStep",
    "QuestionAnswered",
    "QuestionAsked",
    "RunEvent",
    "Span",
    "StepTaken",
    "ToolCompleted",
    "ToolProgress",
    "ToolStarted",
    "TurnEvent",
    "parse_event",
]

if not TYPE_CHECKING:  # who reads no event does without: so modules of clients and stores write `events.ModelDelta`
    _OF_STORES = "build_worker_lost_retraction decode_event encode_event_body"
    _LATE = [name for name in __all__ if name not in ("PathStep", "parse_event")]
    __getattr__ = NameLoader(__name__, {".types.events": " ".join([*_LATE, _OF_STORES])})
    __dir__ = __getattr__.list_names


def parse_event(plain: str | bytes | Mapping[str, Any]) -> Event | None:
    """Parse an event from its JSON, or from the object of it. None for a type that only a newer perdure knows.

    Fields that are missing have their defaults, unknown ones are ignored. Raises ``InvalidInputError`` for what is not
    an event.
    """
    from .types.events import EVENT_TYPES, event_adapter

    try:
        fields = plain if isinstance(plain, Mapping) else from_json(plain, allow_inf_nan=False)
    except (ValueError, TypeError) as error:
        raise InvalidInputError(f"an event is JSON: {error}") from None
    kind = fields.get("type") if isinstance(fields, Mapping) else None
    if not isinstance(kind, str):
        raise InvalidInputError("an event is an object with a type", hint='For instance {"type": "run", …}.')
    if kind not in EVENT_TYPES:
        return None
    try:
        return event_adapter.validate_python(fields)
    except ValidationError as error:
        raise InvalidInputError(f"an event does not fit its type: {describe_validation_error(error, kind)}") from None
