"""What the engine asks of a store: journal, transcripts, runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Protocol, TypeVar

from ..types.events import Event, Span
from ..types.messages import BlobRef, Message
from ..types.subagents import Lineage, PathStep

# ---
# What the engine asks of a store of events: an order per conversation, whoever writes, and a way to follow it.


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event that is to be recorded; its ``seq`` and its spans are the store's to say."""

    event: Event
    key: str | None = None
    """Where the conversation has an event of that key already, this one is dropped. Not kept of a delta, which goes."""


@dataclass(frozen=True, slots=True)
class EventBatch:
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


def timestamp(at: datetime) -> str:
    """``at`` as rows and events have it: ISO 8601, UTC, always with microseconds, so texts sort as times do."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def build_batch_token(asked_at: str, attempt: int | None = None) -> str:
    """The token of an attempt of an activity; without ``attempt``, of its outcome, behind all its attempts."""
    return f"{asked_at}/{'~' if attempt is None else f'{attempt:06d}'}"


@dataclass(frozen=True, slots=True)
class EventRow:
    """A recorded event: see ``types.events.decode_event``."""

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


class EventLog(Protocol):
    """The events of conversations. All methods raise ``StoreError`` when the store fails."""

    async def append(self, batch: EventBatch) -> bool:
        """Record ``batch`` in a transaction of its own. False where it came too late.

        If this raises nothing was written, and the batch may be given again.
        """
        ...

    async def read_events(
        self, context_id: str, *, after: int = 0, limit: int = 1000, children: bool = True
    ) -> list[EventRow]:
        """Events behind number ``after``, in order: of the conversation and, unless ``children`` is false, of all
        runs below it.

        As many as ``limit``, fewer where they are large; none only where there are none.
        """
        ...

    async def wait_for_event(self, context_id: str, after: int, timeout: float) -> int:
        """Wait, ``timeout`` seconds at most, until a number behind ``after`` is taken where the conversation's events
        are numbered, which may be by another run there; the last one by then, 0 where none is."""
        ...


V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Node:
    """A link of a transcript. ``hash`` covers ``parent`` and ``body`` (canonical bytes of messages)."""

    hash: str
    parent: str | None
    body: bytes


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes kept by their hash (sha256, hexadecimal)."""

    hash: str
    body: bytes

    @classmethod
    def from_content(cls, content: str | bytes) -> Blob:
        """The blob of ``content``: its bytes, of a text in UTF-8."""
        body = content.encode() if isinstance(content, str) else content
        return cls(hashlib.sha256(body).hexdigest(), body)

    @property
    def ref(self) -> BlobRef:
        """What stands in its place."""
        return BlobRef(hash=self.hash, size=len(self.body))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an effect came to: the JSON of a ``ModelOutput`` or ``ToolOutput``."""

    key: str
    kind: Literal["model", "tool"]
    body: bytes


@dataclass(frozen=True, slots=True)
class RunRow:
    """A conversation as ``list`` and ``show`` need it after Temporal's retention."""

    context_id: str
    agent: str
    scope: str
    head: str | None
    status: str
    iterations: int = 0
    result: bytes | None = None
    """JSON of the ``Response``; of a failed run with ``error_type`` and ``error`` besides."""
    asked_at: str = ""
    """When Temporal scheduled the call that says so, the same for all its attempts (ISO 8601, UTC, microseconds). A row
    never replaces one that was asked for later: the calls of a conversation are scheduled one after the other, through
    resets and new executions too, so what a worker says that was taken for lost comes too late."""
    created_at: str = ""
    """ISO 8601, UTC; set by the store at the first write."""
    updated_at: str = ""


@dataclass(frozen=True, slots=True)
class TurnRow:
    """A turn of a conversation: kept when the run has forgotten it."""

    context_id: str
    task_id: str
    status: str
    """running, completed, failed or cancelled."""
    head: str | None = None
    result: bytes | None = None
    """As in :class:`RunRow`."""
    messages: Sequence[str] = ()
    """Ids of the users' messages that it took in; each is kept, with the turn that took it first. Not read back."""
    asked_at: str = ""
    """As in :class:`RunRow`."""


@dataclass(frozen=True, slots=True)
class MemoryWrite:
    """A change of the memory that conversations share. ``value`` is JSON; None deletes."""

    namespace: str
    key: str
    value: bytes | None
    checked: bool = False
    """It is made only where ``before`` is still what is kept, None for nothing; else nothing of its commit is, which
    raises ``MemoryChangedError``."""
    before: bytes | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """What is written at once, or not at all."""

    read_nodes: Sequence[Node] = ()
    read_blobs: Sequence[Blob] = ()
    outcome: Outcome | None = None
    run: RunRow | None = None
    turn: TurnRow | None = None
    memory: Sequence[MemoryWrite] = ()
    """In order; the last change of a key is what counts."""
    events: EventBatch | None = None
    """Written with the first outcome, whatever its token: what is recorded has happened. See :class:`EventBatch`."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Answer to a tool's intent: may it act?"""

    state: Literal["new", "begun", "done"]
    """``new``: nobody began it, go. ``begun``: somebody did, and left no outcome. ``done``: here is the outcome."""
    outcome: bytes | None = None
    starts: int = 1
    """How many owners have begun, this one included if it may go. Not counted for ``done``."""


class Journal(Protocol):
    """Outcomes of paid effects. All methods raise ``StoreError`` when the store fails."""

    async def find_outcomes(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The recorded outcomes among ``keys``."""
        ...

    async def claim(self, key: str, owner: str, *, again: bool = False, events: EventBatch | None = None) -> Claim:
        """Record the intent of ``owner`` (one attempt) to act, and with it, where it is ``new``, ``events``.

        The first owner gets ``new``, and so does the same owner asking twice. Another owner gets ``begun``, or
        takes the claim over and gets ``new`` with ``again`` (an idempotent tool). A recorded outcome wins: ``done``.
        """
        ...

    async def commit(self, commit: Commit) -> bytes | None:
        """Write everything in one transaction; nodes and blobs that are there already count as written.

        Returns the recorded outcome: the given one, or the one that an earlier writer recorded under the same key;
        then nothing of this commit's run row, turn, memory and events is written. None without an outcome. A run row
        or turn that was asked for earlier than the recorded one (``asked_at``) is dropped; the rest is written.
        """
        ...


class Transcripts(Protocol):
    """Nodes and blobs."""

    async def read_nodes(self, head: str, *, until: Sequence[str] = ()) -> list[Node]:
        """The chain that ends in ``head``, root first, without what stands at or before a node of ``until``.

        Raises ``TranscriptCorruptedError`` when a node is missing.
        """
        ...

    async def read_blobs(self, hashes: Sequence[str]) -> dict[str, bytes]:
        """The blobs that are there."""
        ...


class Cache(Protocol[V]):
    """Values that can be had again, by key; the least recently used ones leave."""

    def get(self, key: str) -> V | None:
        """The value, if it is there."""
        ...

    def put(self, key: str, value: V, size: int) -> None:
        """Keep ``value``, of ``size`` bytes."""
        ...


class TranscriptChain(Protocol):
    """Transcripts as messages: loaded from nodes, verified, kept in memory; cut into nodes and blobs to be written."""

    async def load(self, head: str | None) -> list[Message]:
        """The conversation up to ``head``, blobs filled in. Raises ``TranscriptCorruptedError``."""
        ...

    def extend(self, head: str | None, messages: Sequence[Message]) -> tuple[Node, list[Blob]]:
        """The node that follows ``head``, and the blobs that it refers to; nothing is written."""
        ...

    def remember(self, node: Node, messages: Sequence[Message]) -> None:
        """Keep a node in memory, so that the next load need not read it."""
        ...

    async def resolve_blob(self, ref: BlobRef) -> str:
        """The text of a blob. Raises ``TranscriptCorruptedError``."""
        ...

    async def load_files(
        self, messages: Iterable[Message], known: Mapping[str, bytes] | None = None
    ) -> dict[str, bytes]:
        """The bytes of every file in ``messages`` that is a blob, by its hash; ``known`` are about to be written.

        Raises ``TranscriptCorruptedError`` for one that is missing or altered.
        """
        ...


class Runs(Protocol):
    """The ``runs`` table."""

    async def get_run(self, context_id: str) -> RunRow | None:
        """One row."""
        ...

    async def list_runs(self, *, agent: str | None = None, status: str | None = None, limit: int = 100) -> list[RunRow]:
        """Rows, the newest first."""
        ...


class Turns(Protocol):
    """The ``turns`` table."""

    async def get_turn(self, context_id: str, task_id: str) -> TurnRow | None:
        """One row, without ``messages``."""
        ...

    async def find_message_turn(self, context_id: str, message_id: str) -> str | None:
        """The ``task_id`` of the turn that took the message of that id first."""
        ...


class SharedMemory(Protocol):
    """What conversations share: JSON values by namespace and key. Changes are part of a :class:`Commit`."""

    async def recall(self, namespace: str, key: str) -> bytes | None:
        """One value."""
        ...

    async def recall_all(self, namespace: str, prefix: str = "", *, limit: int = 1000) -> dict[str, bytes]:
        """The values whose key begins with ``prefix``, in the order of their keys (by code points)."""
        ...


class Store(Journal, Transcripts, Runs, Turns, SharedMemory, EventLog, Protocol):
    """All of it, in one database. ``store_id`` names the database for good; it is known once the store is open."""

    place: str
    """Where it is, for errors."""
    store_id: str
    """"" where the store was opened, and there is none yet."""

    async def open(self, *, create: bool = True) -> None:
        """Connect, and read the ``store_id``. Raises ``StoreError``.

        Where there is no store, one is made; without ``create`` reads find nothing then and writes raise
        ``StoreError``, until it has been made. Called again, it looks whether it has been.
        """
        ...

    async def close(self) -> None:
        """Give the connections back."""
        ...
