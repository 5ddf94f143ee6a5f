"""What the engine asks of a store of events: an order per conversation, whoever writes, and a way to follow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..types.events import Event, Span
from ..types.lineage import Lineage, PathStep


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event that is to be recorded; its ``seq`` and its spans are the store's to say."""

    event: Event
    key: str | None = None
    """Where the conversation has an event of that key already, this one is dropped. Not kept of a delta, which goes."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Events of one conversation, recorded at once and in this order, or not at all.

    ``token`` says when whoever writes was asked to (``asked_at`` and attempt, see :func:`token`): tokens sort as the
    times do. The feed of a conversation remembers the latest token of a batch that ``advances`` it, and a batch with an
    earlier one comes too late, from a worker that was taken for lost: it is dropped whole. A batch that brings a later
    one, while deltas of the earlier one are neither complete nor retracted, is preceded by a ``model.retracted`` of
    them (``WorkerLost``) that the store makes. A batch without a token comes from outside: never too late nor later.

    A ``model.retracted`` in a batch is given, as its spans, the deltas that neither count nor were retracted before; it
    is dropped where there are none. A ``model.completed`` is given all deltas of the conversation, retracted ones too,
    and they are deleted with it.

    What comes with an outcome (``Commit.events``) is written if that outcome is the first, whatever its token, also
    behind the event that says that the run has ended: a tool that acted while its run was terminated has acted, no
    retry will say so again, and whoever resumes the conversation is to find it. Only, its token never takes the feed
    back. If it completes or retracts the open deltas itself, the store retracts none before. What comes with an intent
    (``claim``) can come too late as an ``append`` does; the claim holds all the same.

    Tools write without advancing: calls that run side by side have tokens of their own, and none is lost. Inline tools
    belong to an activity whose reply is recorded, so theirs is the token of its outcome.

    The events of a run with a ``lineage`` take their numbers from the run at the top, and stand in its order; token,
    open deltas and keys are the run's own all the same. The first batch of a conversation says where its events stand
    for good: later ones may leave the lineage out, and nothing moves to where another one says. A run that is begun
    again under its id, by another call, says another ``path`` from then on, and events of before keep theirs.
    """

    context_id: str
    events: Sequence[NewEvent]
    token: str = ""
    advances: bool = False
    lineage: Lineage | None = None


def token(asked_at: str, attempt: int | None = None) -> str:
    """The token of an attempt of an activity; without ``attempt``, of its outcome, behind all its attempts."""
    return f"{asked_at}/{'~' if attempt is None else f'{attempt:06d}'}"


@dataclass(frozen=True, slots=True)
class EventRow:
    """A recorded event: see ``types.events.read_event``."""

    seq: int
    task_id: str | None
    type: str
    body: bytes
    spans: tuple[Span, ...] = ()
    """``replaces`` of a ``model.completed``, ``retracts`` of a ``model.retracted``."""
    child: str | None = None
    """Id of the run below the one that was asked for whose event it is; None for that one's own."""
    path: tuple[PathStep, ...] = ()
    """The way from the one that was asked for down to ``child``."""


class Events(Protocol):
    """The events of conversations. All methods raise ``StoreError`` when the store fails."""

    async def append(self, batch: Batch) -> bool:
        """Record ``batch`` in a transaction of its own. False where it came too late.

        If this raises nothing was written, and the batch may be given again.
        """
        ...

    async def events(
        self, context_id: str, *, after: int = 0, limit: int = 1000, children: bool = True
    ) -> list[EventRow]:
        """Events behind number ``after``, in order: of the conversation and, unless ``children`` is false, of all
        runs below it.

        As many as ``limit``, fewer where they are large; none only where there are none.
        """
        ...

    async def changed(self, context_id: str, after: int, timeout: float) -> int:
        """Wait, ``timeout`` seconds at most, until a number behind ``after`` is taken where the conversation's events
        are numbered, which may be by another run there; the last one by then, 0 where none is."""
        ...
