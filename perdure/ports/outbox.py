"""The port of the outbox: events that are to be delivered elsewhere, and what a process writes beside its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Protocol

from .. import events
from .webhooks import WEBHOOK_EVENT_TYPES, WEBHOOK_TARGET


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a process writes beside what it is given: settable on a store."""

    outbox: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Which events get an outbox row: by target, the types of events, ``*`` for any characters (``approval.*``). By
    default none: rows that no program takes would only grow. Deltas get none: they are deleted."""
    key_id: str | None = None
    """Id of the key that the bodies are encrypted with: None, as perdure stores bodies in plain today."""

    def find_targets(self, events: Iterable[events.Event]) -> list[tuple[int, str]]:
        """Return position and target of each outbox row that ``events`` get; that of ``WEBHOOK_TARGET`` only while a
        webhook is enabled, which the store looks up as it writes."""
        return [
            (position, target)
            for position, event in enumerate(events)
            if event.type != "model.delta"
            for target in self._find_targets(event.type)
        ]

    def _find_targets(self, type: str) -> list[str]:
        given = [target for target, patterns in self.outbox.items() if any(fnmatchcase(type, one) for one in patterns)]
        return list(dict.fromkeys([*given, WEBHOOK_TARGET])) if type in WEBHOOK_EVENT_TYPES else given


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """An event that is to be delivered. ``stream``, ``seq`` and ``target`` identify the row."""

    stream: str
    """The conversation that numbers the event: the root of the run's tree."""
    seq: int
    target: str
    context_id: str
    """The run that the event is of."""
    type: str
    created_at: str
    """ISO 8601, UTC, microseconds."""
    taken: int = 0
    """How often it was taken, this time included."""


class Outbox(Protocol):
    """Events that are to be delivered elsewhere: written in the transaction of the event, deleted once another system
    is certain to deliver them. All methods raise ``StoreError`` when the store fails."""

    async def take_outbox(self, owner: str, *, target: str, lease_seconds: float, limit: int = 100) -> list[OutboxRow]:
        """Take rows that no other owner has, the oldest first; they are this owner's for ``lease_seconds``.

        A row that is not deleted by then may be taken again: a delivery needs an id that is the same each time.
        """

    async def delete_outbox(self, owner: str, rows: Sequence[OutboxRow]) -> int:
        """Delete those of ``rows`` that ``owner`` still has, and return how many."""
