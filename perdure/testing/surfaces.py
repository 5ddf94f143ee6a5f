"""The tables that are not for runs themselves, in memory, for :class:`.store.MemoryStore`."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from ..ports.audit import AuditRow, build_refusal_row, cut_audit_row
from ..ports.idempotency import (
    IdempotencyClaim,
    build_idempotency_claim,
    check_idempotency_answer,
    check_idempotency_key,
)
from ..ports.outbox import OutboxRow, WriteOptions
from ..ports.store import EventRow, RunRow, TurnRow
from ..ports.times import add_seconds
from ..ports.waits import RunWaits, WaitChange, WaitCursor, WaitRow
from ..ports.webhooks import WEBHOOK_TARGET, RowCursor
from ..types.approvals import PendingKind
from .decisions import MemoryDecisions
from .grants import MemoryGrants
from .tokens import MemoryTokens
from .usage import MemoryUsage
from .webhooks import MemoryWebhooks


@dataclass(slots=True)
class IdempotencyEntry:
    """A key with the request that has it."""

    request_hash: str
    owner: str
    leased_until: str
    expires_at: str
    answer: bytes | None = None


class MemorySurfaces(MemoryTokens, MemoryGrants, MemoryDecisions, MemoryWebhooks, MemoryUsage):
    """The methods of these ports. A test may access everything."""

    _now: Callable[[], str]
    all_runs: dict[str, RunRow]

    def __init__(self) -> None:
        super().__init__()
        self.write_options = WriteOptions()
        self.waits: dict[tuple[str, str], tuple[WaitRow, int]] = {}
        """By conversation and call, each with the number of its event."""
        self.outbox: dict[tuple[str, int, str], tuple[OutboxRow, str, str]] = {}
        """By stream, number and target, each with its owner and the end of the lease."""
        self.audit: dict[str, AuditRow] = {}
        self.idempotency: dict[str, IdempotencyEntry] = {}
        self.key_ids: dict[tuple[str, Hashable], str] = {}
        """By table and key of the row: the key that its body is encrypted with."""

    @abstractmethod
    def _raise_failure(self) -> None: ...

    @abstractmethod
    async def read_events(
        self, context_id: str, *, after: int = 0, limit: int = 1000, children: bool = True
    ) -> list[EventRow]:
        """See :class:`perdure.ports.EventLog`."""

    def change_waits(self, agent: str, changes: Iterable[WaitChange], stream: str, seq: int) -> None:
        """Apply what the event of that number changes."""
        for change in changes:
            if change.call_id is None:
                self.waits = {name: row for name, row in self.waits.items() if name[0] != change.context_id}
            elif change.kind is None:
                self.waits.pop((change.context_id, change.call_id), None)
            else:
                name = change.context_id, change.call_id
                row = WaitRow(*name, stream, change.kind, agent, change.tool, change.hash, change.created_at)
                self.waits[name] = replace(row, expires_at=change.expires_at), seq

    def add_outbox_row(self, stream: str, seq: int, target: str, context_id: str, type: str, now: str) -> None:
        """Add a row for the event of that number; for webhooks only while one is enabled."""
        if target == WEBHOOK_TARGET and not self.has_enabled_webhook():
            return
        self.outbox[stream, seq, target] = OutboxRow(stream, seq, target, context_id, type, now), "", ""

    def note_key(self, table: str, row: Hashable) -> None:
        """Note with which key the body of a row is encrypted."""
        self.forget_key(table, row)
        if self.write_options.key_id is not None:
            self.key_ids[table, row] = self.write_options.key_id

    def forget_key(self, table: str, row: Hashable) -> None:
        """Note that a row is deleted, or in plain."""
        self.key_ids.pop((table, row), None)

    async def list_waits(
        self,
        *,
        agent: str | None = None,
        kind: PendingKind | None = None,
        by_expiry: bool = False,
        after: WaitCursor | None = None,
        limit: int = 100,
    ) -> list[WaitRow]:
        """List waits, the oldest first, or the soonest to expire."""
        self._raise_failure()
        found = [
            (row, seq)
            for row, seq in self.waits.values()
            if agent in (None, row.agent) and kind in (None, row.kind) and (row.expires_at or not by_expiry)
        ]
        ordered = sorted(found, key=lambda pair: pair[0].get_cursor(by_expiry=by_expiry))
        page = [pair for pair in ordered if after is None or pair[0].get_cursor(by_expiry=by_expiry) > after][:limit]
        events = [await self.read_events(row.root, after=seq - 1, limit=1) for row, seq in page]
        return [
            replace(row, body=next((event.body for event in rows if event.seq == seq), None))
            for (row, seq), rows in zip(page, events, strict=True)
        ]

    async def list_run_waits(self, context_ids: Sequence[str], *, limit: int = 1000) -> dict[str, RunWaits]:
        """Return what each of these runs waits for."""
        self._raise_failure()
        rows = sorted((row for row, _ in self.waits.values()), key=WaitRow.get_cursor)
        pairs = [
            (context_id, row)
            for row in rows
            for context_id in dict.fromkeys(context_ids)
            if row.context_id == context_id or row.context_id.startswith(f"{context_id}/")
        ][:limit]
        return {
            context_id: RunWaits(
                tuple(row for above, row in pairs if above == context_id), is_at_work=self._is_at_work(context_id)
            )
            for context_id in context_ids
        }

    @abstractmethod
    def _is_at_work(self, context_id: str) -> bool: ...

    async def count_waits(self, *, agent: str | None = None) -> int:
        """Count the waits."""
        self._raise_failure()
        return sum(agent in (None, row.agent) for row, _ in self.waits.values())

    async def put_wait(self, row: WaitRow) -> None:
        """Add the wait of a call that waits without a row."""
        self._raise_failure()
        self.waits.setdefault((row.context_id, row.call_id), (replace(row, body=None), 0))

    async def remove_wait(self, context_id: str, call_id: str, hash: str | None = None) -> None:
        """Remove a wait; with ``hash`` only for that."""
        self._raise_failure()
        entry = self.waits.get((context_id, call_id))
        if entry is not None and hash in (None, entry[0].hash):
            del self.waits[context_id, call_id]

    async def take_outbox(self, owner: str, *, target: str, lease_seconds: float, limit: int = 100) -> list[OutboxRow]:
        """Take rows that no other owner has, the oldest first."""
        self._raise_failure()
        now = self._now()
        until = add_seconds(now, lease_seconds)
        free = [row for row, _, leased_until in self.outbox.values() if row.target == target and leased_until <= now]
        ordered = sorted(free, key=lambda row: (row.created_at, row.stream, row.seq))
        taken = [replace(row, taken=row.taken + 1) for row in ordered[:limit]]
        self.outbox |= {(row.stream, row.seq, row.target): (row, owner, until) for row in taken}
        return taken

    async def delete_outbox(self, owner: str, rows: Sequence[OutboxRow]) -> int:
        """Delete the rows that ``owner`` still has."""
        self._raise_failure()
        names = {(row.stream, row.seq, row.target) for row in rows}
        own = [name for name in names if name in self.outbox and self.outbox[name][1] == owner]
        for name in own:
            del self.outbox[name]
        return len(own)

    async def record_audit(self, row: AuditRow) -> None:
        """Record a request."""
        self._raise_failure()
        self.audit.setdefault(row.id, self._label(row))

    async def record_refused_audit(self, row: AuditRow) -> None:
        """Count a refused request in the row of its caller's refusals."""
        self._raise_failure()
        shared = self._label(build_refusal_row(row))
        if (earlier := self.audit.get(shared.id)) is not None:
            count = earlier.count + 1
            shared = replace(earlier, refused=shared.refused, count=count, last_at=shared.last_at)
        self.audit[shared.id] = shared
        self.audit.pop(row.id, None)

    def _label(self, row: AuditRow) -> AuditRow:
        run = self.all_runs.get(row.subject)
        if run is not None:
            row = replace(row, agent=run.agent, tenant=run.tenant or row.tenant, user=run.user or row.user)
        return cut_audit_row(row)

    async def list_audit(
        self,
        *,
        subject: str | None = None,
        by: str | None = None,
        verb: str | None = None,
        since: str = "",
        until: str = "",
        refused: bool = False,
        tenants: Sequence[str] | None = None,
        after: RowCursor | None = None,
        limit: int = 100,
    ) -> list[AuditRow]:
        """List requests, the newest first."""
        self._raise_failure()

        def is_listed(row: AuditRow) -> bool:
            return (
                subject in (None, row.subject)
                and by in (None, row.by)
                and (verb in (None, row.verb) or (verb.endswith("*") and row.verb.startswith(verb[:-1])))
                and since <= row.at
                and (not until or row.at < until)
                and (not refused or row.refused is not None)
                and (tenants is None or row.tenant in tenants)
                and (after is None or (row.at, row.id) < after)
            )

        rows = [row for row in self.audit.values() if is_listed(row)]
        return sorted(rows, key=lambda row: (row.at, row.id), reverse=True)[:limit]

    async def claim_idempotency(
        self, key: str, request_hash: str, owner: str, *, lease_seconds: float, keep_seconds: float
    ) -> IdempotencyClaim:
        """Claim a key for a request."""
        self._raise_failure()
        check_idempotency_key(key)
        now, entry = self._now(), self.idempotency.get(key)
        if entry is not None and entry.expires_at > now:
            is_lost = entry.leased_until <= now or entry.owner == owner
            if entry.answer is not None or entry.request_hash != request_hash or not is_lost:
                return build_idempotency_claim(request_hash, entry.request_hash, entry.answer)
        until, expires_at = add_seconds(now, lease_seconds), add_seconds(now, keep_seconds)
        self.idempotency[key] = IdempotencyEntry(request_hash, owner, until, expires_at)
        return IdempotencyClaim("new")

    async def list_idempotency_answers(self, prefix: str, limit: int) -> list[bytes]:
        """List the answers under keys that begin with ``prefix``."""
        self._raise_failure()
        now = self._now()
        entries = [entry for key, entry in sorted(self.idempotency.items()) if key.startswith(prefix)]
        return [entry.answer for entry in entries if entry.answer is not None and entry.expires_at > now][:limit]

    async def complete_idempotency(self, key: str, owner: str, answer: bytes | None) -> bool:
        """Record the answer, or free the key."""
        self._raise_failure()
        if answer is not None:
            check_idempotency_answer(answer)
        entry = self.idempotency.get(key)
        if entry is None or entry.owner != owner or entry.answer not in (None, answer):
            return False
        if answer is None:
            del self.idempotency[key]
        entry.answer = answer
        return True

    async def delete_expired_idempotency(self, limit: int = 1000) -> int:
        """Delete keys whose time is over."""
        self._raise_failure()
        now = self._now()
        expired = [key for key, entry in self.idempotency.items() if entry.expires_at <= now][:limit]
        for key in expired:
            del self.idempotency[key]
        return len(expired)

    async def count_keys(self) -> dict[str, dict[str, int]]:
        """Count the rows under each key."""
        self._raise_failure()
        counts: dict[str, dict[str, int]] = {}
        rows = [(table, key_id) for (table, _), key_id in self.key_ids.items()]
        rows += [("webhooks", row.key_id) for row in self.webhooks.values() if row.key_id is not None]
        for (table, key_id), count in Counter(rows).items():
            counts.setdefault(key_id, {})[table] = count
        return counts


class MemoryLists:
    """The lists of :class:`perdure.ports.store.Runs` and :class:`perdure.ports.store.Turns`."""

    all_runs: dict[str, RunRow]
    all_turns: dict[tuple[str, str], TurnRow]

    @abstractmethod
    def _raise_failure(self) -> None: ...

    @abstractmethod
    def _find_root(self, context_id: str) -> str | None: ...

    async def get_runs(self, context_ids: Sequence[str]) -> dict[str, RunRow]:
        """The rows of those runs that have one, without ``result``."""
        self._raise_failure()
        rows = {name: self.all_runs[name] for name in context_ids if name in self.all_runs}
        return {name: replace(row, result=None, root=self._find_root(name)) for name, row in rows.items()}

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
        """Rows, the newest first, without ``result``; with ``roots`` only those without a ``root``."""
        self._raise_failure()
        runs = (replace(row, result=None, root=self._find_root(name)) for name, row in self.all_runs.items())
        rows = [
            row
            for row in runs
            if agent in (None, row.agent)
            and status in (None, row.status)
            and tenant in (None, row.tenant)
            and user in (None, row.user)
            and (created_from is None or row.created_at >= created_from)
            and (created_before is None or row.created_at < created_before)
            and (after is None or (row.created_at, row.context_id) < after)
        ]
        newest = sorted(rows, key=lambda row: (row.created_at, row.context_id), reverse=True)
        return [row for row in newest if not roots or row.root is None][:limit]

    async def list_turns(
        self, context_id: str, *, after: tuple[str, str] | None = None, limit: int = 100
    ) -> list[TurnRow]:
        """The turns of a run, the newest first."""
        self._raise_failure()
        rows = [replace(row, result=None) for (run_id, _), row in self.all_turns.items() if run_id == context_id]
        newest = sorted(rows, key=lambda row: (row.created_at, row.task_id), reverse=True)
        return [row for row in newest if after is None or (row.created_at, row.task_id) < after][:limit]
