"""The port of a store: journal, transcripts, runs, turns, shared memory and events."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from .. import events
from ..types.messages import BlobRef, Data, File, FilePart, Message, decode_file_data, is_large_text
from ..types.subagents import Lineage, PathStep
from ..types.transcript import Transcript
from .audit import Audit
from .bulk_actions import BulkActions
from .decisions import Decisions
from .encrypted_bodies import EncryptedBodies
from .failures import Failures
from .grants import Grants
from .idempotency import Idempotency
from .nudges import Nudges
from .outbox import Outbox, WriteOptions
from .retention import Retention
from .run_lists import FailureCount, RunFilter
from .tokens import Tokens
from .usage import UsageLog, UsageRow
from .waits import Waits
from .webhooks import Webhooks

V = TypeVar("V")
DataT = TypeVar("DataT", bound=Data)

# ---
# The event log: one order of events per conversation for all writers, and a way to follow it.


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to record; the store assigns its ``seq`` and its spans."""

    event: events.Event
    key: str | None = None
    """If the conversation has an event of that key, this one is dropped. Not stored for deltas, which are deleted."""


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events of one conversation, recorded at once and in this order, or not at all.

    ``token`` says when the writer's activity was scheduled (``asked_at`` and attempt, see :func:`build_batch_token`):
    tokens sort as the times do. The feed of a conversation keeps the latest token of a batch that ``advances`` it; a
    batch with an earlier one is too late, from a worker that was considered lost, and is dropped whole. If a batch has
    a later token while deltas of the earlier one are neither complete nor retracted, the store first writes a
    ``model.retracted`` of them (``WorkerLost``). A batch without a token comes from outside the workers: it is neither
    too late nor later.

    A ``model.retracted`` in a batch gets as its spans the deltas that are neither complete nor retracted before; it is
    dropped if there are none. Likewise a ``run`` of the state ``held_up`` or ``recovered`` with a ``failing_call`` is
    dropped unless that call has just held its run up, or has done so. A ``model.completed`` gets all deltas of the
    conversation, retracted ones too, and they are deleted with it.

    Events of an outcome (``Commit.events``) are written if that outcome is the first, whatever its token, also after
    the event of the run's end: a tool that acted while its run was terminated has acted, no retry will report it again,
    and a client that resumes the conversation must find it. But its token never moves the feed back. If it completes or
    retracts the open deltas itself, the store retracts none before. Events of an intent (``claim``) can be too late as
    those of an ``append``; the claim holds all the same.

    Tools write without advancing: concurrent calls have tokens of their own, and none is lost. Inline tools belong to
    an activity whose reply is recorded, so they use the token of its outcome.

    The events of a run with a ``lineage`` take their numbers from the root run, and are in its order; token, open
    deltas and keys are still the run's own. The first batch of a conversation fixes where its events are stored: later
    ones may omit the lineage. One with another root raises ``RunIdError``, as does the first batch of a run that was
    deleted for good: nothing of it is written. A run that is started again under its id, by another call, has another
    ``path`` from then on, and earlier events keep theirs.
    """

    context_id: str
    events: Sequence[NewEvent]
    token: str = ""
    advances: bool = False
    lineage: Lineage | None = None
    agent: str = ""
    """The run's agent, for its waits (:class:`~.waits.Waits`)."""
    scheduled: str = ""
    """For a batch without ``token``: the token of the writer's activity. A batch that was scheduled before the feed's
    token, from a worker that was considered lost, changes no waits, although its events are written."""
    tenant: str | None = None
    """Whose run it is, and ``user``: for the attempts that fail (:class:`~.failures.Failures`)."""
    user: str | None = None


def build_batch_token(asked_at: str, attempt: int | None = None) -> str:
    """Build the token of an attempt of an activity; without ``attempt``, of its outcome, after all its attempts."""
    return f"{asked_at}/{'~' if attempt is None else f'{attempt:06d}'}"


@dataclass(frozen=True, slots=True)
class EventRow:
    """A recorded event: see ``types.events.decode_event``."""

    seq: int
    task_id: str | None
    type: str
    body: bytes
    spans: tuple[events.Span, ...] = ()
    """``replaces`` of a ``model.completed``, ``retracts`` of a ``model.retracted``."""
    child: str | None = None
    """Id of the run below the requested one that the event belongs to; None for the requested run's own."""
    path: tuple[PathStep, ...] = ()
    """The path from the requested run down to ``child``."""


def build_spans(numbers: Iterable[int]) -> tuple[events.Span, ...]:
    """Return ascending numbers as first and last of each gapless range."""
    spans: list[events.Span] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = spans[-1][0], number
        else:
            spans.append((number, number))
    return tuple(spans)


class EventLog(Protocol):
    """The events of conversations. All methods raise ``StoreError`` when the store fails."""

    async def append(self, batch: EventBatch) -> bool:
        """Record ``batch`` in a transaction of its own. False if it is too late.

        If this raises, nothing was written, and the batch may be appended again.
        """

    async def read_events(
        self, context_id: str, *, after: int = 0, limit: int = 1000, children: bool = True
    ) -> list[EventRow]:
        """Read the events after number ``after``, in order: of the conversation and, unless ``children`` is false, of
        all runs below it.

        At most ``limit``, fewer if they are large; none only if there are none.
        """

    async def wait_for_event(self, context_id: str, after: int, timeout: float) -> int:
        """Wait, ``timeout`` seconds at most, for a number after ``after`` in the stream of the conversation's events,
        possibly of another run there; return the last number by then, 0 if there is none."""


# ---
# Journal, transcripts, runs, turns and shared memory.


@dataclass(frozen=True, slots=True)
class Node:
    """A link of a transcript. ``hash`` covers ``parent`` and ``body`` (canonical bytes of messages)."""

    hash: str
    parent: str | None
    body: bytes


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes stored by their hash (sha256, hexadecimal)."""

    hash: str
    body: bytes

    @classmethod
    def from_content(cls, content: str | bytes) -> Blob:
        """Build the blob of ``content``; text is encoded as UTF-8."""
        body = content.encode() if isinstance(content, str) else content
        return cls(hashlib.sha256(body).hexdigest(), body)

    @property
    def ref(self) -> BlobRef:
        """The reference that replaces it."""
        return BlobRef(hash=self.hash, size=len(self.body))


def add_blob(blobs: list[Blob], content: str | bytes) -> BlobRef:
    """Add the blob of ``content`` to ``blobs``, and return its reference."""
    blobs.append(Blob.from_content(content))
    return blobs[-1].ref


def move_file_to_blob(part: FilePart, blobs: list[Blob]) -> FilePart:
    """Replace the bytes of ``part``, if it has them, by a reference to a blob, which is added to ``blobs``. Raises
    ``InvalidInputError``."""
    if part.data is None:
        return part
    return part.model_copy(update={"data": None, "blob": add_blob(blobs, decode_file_data(part))})


async def record_file(file: File, blobs: list[Blob]) -> FilePart:
    """Return the part of ``file``. Its bytes, if it has them, are added to ``blobs``."""
    if file.data is None:
        return file.part
    blob = await asyncio.to_thread(Blob.from_content, file.data)  # hashing: 20 ms for 20 MB
    blobs.append(blob)
    return FilePart(media_type=file.media_type, name=file.name, blob=blob.ref)


def move_text_to_blob(model: DataT, field: str, blobs: list[Blob], empty: str | None = "") -> DataT:
    """Replace a text above ``INLINE_BYTES`` in ``field`` of ``model`` by ``empty``, and by a reference in ``blob``. Its
    blob is added to ``blobs``."""
    text = getattr(model, field)
    if text is None or not is_large_text(text):
        return model
    return model.model_copy(update={field: empty, "blob": add_blob(blobs, text)})


OutcomeKind = Literal["model", "compact", "close", "remind", "tool", "block"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The recorded result of an effect: the JSON of an activity's output; or a block of a worker's event loop by a call
    (``calls/loop_watch.py``)."""

    key: str
    kind: OutcomeKind
    body: bytes


@dataclass(frozen=True, slots=True)
class RunRow:
    """A conversation, as ``list`` and ``show`` need it after Temporal's retention."""

    context_id: str
    agent: str
    scope: str
    head: str | None
    status: str
    iterations: int = 0
    result: bytes | None = None
    """JSON of the ``Response``; of a failed run also with ``error_type`` and ``error``."""
    asked_at: str = ""
    """When Temporal scheduled the call that wrote this, the same for all its attempts (ISO 8601, UTC, microseconds). A
    row never replaces one with a later time: the calls of a conversation are scheduled one after the other, also
    through resets and new executions, so a write of a worker that was considered lost is too late."""
    created_at: str = ""
    """ISO 8601, UTC; set by the store at the first write."""
    updated_at: str = ""
    root: str | None = None
    """For a run that another run has started: the root of its tree, whose stream has its events. Read from the events
    (``EventBatch.lineage``); not written."""
    tenant: str | None = None
    """The tenant and the user whose run it is: a row of others is not replaced, and raises ``RunIdError``."""
    user: str | None = None
    first_message: str | None = None
    """The beginning of the message that the run began with, on one line, at most ``FIRST_MESSAGE_CHARS``: for lists and
    their search. The first write that has one sets it."""
    error_type: str | None = None
    """Of a run that failed, or whose turn did, the class of the error; ``error`` is its text, at most
    ``ERROR_CHARS``."""
    error: str | None = None


FIRST_MESSAGE_CHARS, ERROR_CHARS = 200, 500


@dataclass(frozen=True, slots=True)
class TurnRow:
    """A turn of a conversation, kept after the workflow has dropped it."""

    context_id: str
    task_id: str
    status: str
    """running, completed, failed or cancelled."""
    head: str | None = None
    result: bytes | None = None
    """As in :class:`RunRow`."""
    messages: Sequence[str] = ()
    """Ids of the users' messages that it took; each is stored with the first turn that took it. Not read back."""
    asked_at: str = ""
    """As in :class:`RunRow`."""
    created_at: str = ""
    """ISO 8601, UTC; set by the store at the first write, and read back by lists only, as ``updated_at``."""
    updated_at: str = ""


@dataclass(frozen=True, slots=True)
class MemoryWrite:
    """A change of the memory that conversations share. ``value`` is JSON; None deletes."""

    namespace: str
    key: str
    value: bytes | None
    checked: bool = False
    """Write only if the stored value is still ``before`` (None for no value); otherwise nothing of the commit is
    written, and ``MemoryChangedError`` is raised."""
    before: bytes | None = None


@dataclass(frozen=True, slots=True)
class AgentRow:
    """The definition of an agent, as workers have served it: what can be shown without its code."""

    hash: str
    """SHA-256 of ``body``, hexadecimal."""
    name: str
    body: bytes
    """JSON; see ``agent.definition``."""
    created_at: str = ""
    """ISO 8601, UTC; set by the store at the first write."""
    seen_at: str = ""
    """When a worker that serves it has last started; set by the store."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Everything that is written in one transaction."""

    nodes: Sequence[Node] = ()
    blobs: Sequence[Blob] = ()
    outcome: Outcome | None = None
    run: RunRow | None = None
    turn: TurnRow | None = None
    memory: Sequence[MemoryWrite] = ()
    """In order; the last change of a key counts."""
    events: EventBatch | None = None
    """Written with the first outcome, whatever its token, because a recorded effect has happened."""
    usage: UsageRow | None = None
    """Written with the first ``outcome``, which must be given; once for a journal key."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The answer to a tool's intent: whether it may act."""

    state: Literal["new", "begun", "done"]
    """``new``: it may act. ``begun``: another owner began it, and left no outcome. ``done``: it has an outcome."""
    outcome: bytes | None = None
    starts: int = 1
    """Number of owners that have begun, including this one if it may act. Not counted for ``done``."""
    begun_by: str | None = None
    """The other owner whose claim was found, if there was one. Not given for ``done``."""


class Journal(Protocol):
    """The journal of paid effects and their outcomes. All methods raise ``StoreError`` when the store fails."""

    async def find_outcomes(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the recorded outcomes among ``keys``."""

    async def claim(self, key: str, owner: str, *, again: bool = False, events: EventBatch | None = None) -> Claim:
        """Record the intent of ``owner`` (one attempt) to act, and with it, if it is ``new``, ``events``.

        The first owner gets ``new``, also asking twice. Another owner gets ``begun``, or with ``again`` (an idempotent
        tool) takes the claim over and gets ``new``. If there is a recorded outcome: ``done``.
        """

    async def release_claim(self, key: str, owner: str) -> bool:
        """Delete the claim of ``owner``, who has not acted and will not. False if it is not its alone, or has ended."""

    async def commit(self, commit: Commit) -> bytes | None:
        """Write everything in one transaction; existing nodes and blobs count as written.

        Returns the recorded outcome: the given one, or the one that an earlier writer recorded under the same key; then
        nothing of this commit's run row, turn, memory, events and usage is written. None without an outcome. A run row
        or turn with an earlier ``asked_at`` than the recorded one is dropped; the rest is written.
        """


class Transcripts(Protocol):
    """Nodes and blobs."""

    async def read_nodes(self, head: str, *, until: Sequence[str] = ()) -> list[Node]:
        """Return the chain that ends in ``head``, root first, without the nodes of ``until`` and those before them.

        Raises ``TranscriptCorruptedError`` when a node is missing.
        """

    async def read_blobs(self, hashes: Sequence[str]) -> dict[str, bytes]:
        """Return the blobs that exist, by hash."""


class Cache(Protocol[V]):
    """A cache of recomputable values, by key; the least recently used ones are evicted."""

    def get(self, key: str) -> V | None:
        """Return the value, or None if it is not cached."""

    def put(self, key: str, value: V, size: int) -> None:
        """Keep ``value``, of ``size`` bytes."""


class TranscriptChain(Protocol):
    """Transcripts as messages: loaded from nodes, verified and cached; split into nodes and blobs to be written."""

    async def load(self, head: str | None) -> Transcript:
        """Load the conversation up to ``head``, with the texts of blobs. Raises ``TranscriptCorruptedError``."""

    def extend(self, head: str | None, messages: Sequence[Message]) -> tuple[Node, list[Blob]]:
        """Build the node that follows ``head``, and the blobs that it refers to; nothing is written."""

    def remember(self, node: Node, messages: Sequence[Message]) -> None:
        """Cache a node, so that the next load does not read it."""

    async def resolve_blob(self, ref: BlobRef) -> str:
        """Return the text of a blob. Raises ``TranscriptCorruptedError``."""

    async def load_files(
        self, messages: Sequence[Message], known: Mapping[str, bytes] | None = None
    ) -> dict[str, bytes]:
        """Return the bytes of every file in ``messages`` that is a blob, by its hash; ``known`` are about to be
        written.

        Raises ``TranscriptCorruptedError`` for one that is missing or altered.
        """


class Runs(Protocol):
    """The ``runs`` table."""

    async def get_run(self, context_id: str) -> RunRow | None:
        """Return one row, or None."""

    async def get_runs(self, context_ids: Sequence[str]) -> dict[str, RunRow]:
        """Return the rows of those runs that have one, without ``result``."""

    async def list_runs(
        self,
        *,
        agent: str | None = None,
        status: str | None = None,
        tenant: str | None = None,
        user: str | None = None,
        roots: bool = False,
        created_from: str | None = None,
        created_before: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> list[RunRow]:
        """List rows, the newest first, without ``result``; with ``roots`` only those without a ``root``. Times are as
        of ``created_at``, the first inclusive. ``after``: ``created_at`` and ``context_id`` of the last row before."""

    async def search_runs(
        self, filter: RunFilter, *, after: tuple[str, str] | None = None, limit: int = 100
    ) -> tuple[list[RunRow], tuple[str, str] | None]:
        """List rows, the newest first, without ``result``, and return where the next page continues; None at the end.
        ``after``: ``created_at`` and ``context_id`` of that place. A search looks at ``SCANNED_RUNS`` rows at most, so
        a page may have fewer than ``limit`` rows before the end."""

    async def find_first_messages(self, context_ids: Sequence[str]) -> dict[str, str]:
        """Return the beginning of the first message of root runs that have no row yet, by their first events, as
        ``first_message``; those without one are left out."""

    async def count_failures(
        self,
        since: str,
        *,
        tenants: Sequence[str] | None = None,
        agents: Sequence[str] | None = None,
        sessions: Sequence[str] | None = None,
        limit: int = 20,
    ) -> list[FailureCount]:
        """Count the rows, subagents' too, that have an error recorded at that time or later, by its class, the most
        frequent first: only those of these tenants, agents and sessions with the runs below them; None for all."""


class Turns(Protocol):
    """The ``turns`` table."""

    async def get_turn(self, context_id: str, task_id: str) -> TurnRow | None:
        """Return one row, without ``messages``, or None."""

    async def list_turns(
        self, context_id: str, *, after: tuple[str, str] | None = None, limit: int = 100
    ) -> list[TurnRow]:
        """List the turns of a run, the newest first, without ``result`` and ``messages``. ``after``: ``created_at`` and
        ``task_id`` of the last row of the page before."""

    async def find_message_turn(self, context_id: str, message_id: str) -> str | None:
        """Return the ``task_id`` of the first turn that took the message of that id."""


class SharedMemory(Protocol):
    """The memory that conversations share: JSON values by namespace and key. Changes are part of a :class:`Commit`."""

    async def recall(self, namespace: str, key: str) -> bytes | None:
        """Return one value, or None."""

    async def recall_all(self, namespace: str, prefix: str = "", *, limit: int = 1000) -> dict[str, bytes]:
        """Return the values whose key begins with ``prefix``, in the order of their keys (by code points)."""


# ---
# Agents, and the whole store.


class AgentRegistry(Protocol):
    """The ``agents`` table."""

    async def record_agents(self, agents: Sequence[AgentRow]) -> None:
        """Record the definitions in one transaction. Of one that is known ``seen_at`` is renewed."""

    async def list_agents(self, name: str | None = None) -> list[AgentRow]:
        """List all definitions, or those of ``name``, by name, those of one name the latest seen first."""

    async def list_agent_names(self) -> list[str]:
        """List the names of all agents, without their definitions."""


class Store(
    Journal,
    Transcripts,
    Runs,
    Turns,
    SharedMemory,
    EventLog,
    UsageLog,
    AgentRegistry,
    Waits,
    Failures,
    Decisions,
    Outbox,
    Webhooks,
    BulkActions,
    Audit,
    Idempotency,
    EncryptedBodies,
    Tokens,
    Grants,
    Retention,
    Nudges,
    Protocol,
):
    """All store protocols, in one database. ``store_id`` identifies the database permanently; it is known once the
    store is open."""

    place: str
    """Location of the store, for errors."""
    store_id: str
    """"" where the store was opened, and there is none yet."""
    write_options: WriteOptions
    """What this process writes beside what it is given; settable."""

    async def open(self, *, create: bool = True) -> None:
        """Connect, and read the ``store_id``. Raises ``StoreError``.

        If there is no store, one is made; without ``create``, reads then find nothing and writes raise ``StoreError``
        until it has been made. Another call checks whether it has been made.
        """

    async def close(self) -> None:
        """Close the connections."""
