"""Reads and changes the tables that are not for runs themselves: waits, outbox, audit, idempotency, keys of bodies.

Every statement is one of both databases, so an adapter gives two methods only. What the events of a run change in waits
and outbox is in ``event_log.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from ..ports.store import format_utc_now, timestamp
from ..ports.surfaces import (
    AuditRow,
    IdempotencyClaim,
    OutboxRow,
    RunWaits,
    WaitCursor,
    WaitRow,
    add_seconds,
    build_idempotency_claim,
    build_refusal_row,
    check_idempotency_answer,
    check_idempotency_key,
    cut_audit_row,
)
from ..ports.webhooks import RowCursor
from ..types.approvals import PendingKind
from .decisions import DecisionTables
from .grants import GrantTables
from .schema import MAX_KEYS, TABLES, as_bytes, bind_keys, build_in, build_insert
from .tokens import TokenTables
from .usage import UsageTables
from .webhooks import WebhookTables

SELECT_WAITS = """
    SELECT waits.context_id, call_id, root, kind, agent, tool, hash, created_at, expires_at, events.body
    FROM waits LEFT JOIN events ON events.context_id = waits.root AND events.seq = waits.seq
    WHERE {conditions} ORDER BY {order}, waits.context_id, call_id LIMIT :limit"""
_WAIT_COLUMNS = ", ".join(f"waits.{column} AS {column}" for column in TABLES["waits"] if column != "seq")
# First the runs' own, then those of the runs below them, whose ids have theirs and a slash before their own; "0" is the
# character after it. CROSS JOIN: SQLite then looks for each run's range in the key of the waits.
SELECT_RUN_WAITS = f"""
    SELECT waits.context_id AS run_id, {_WAIT_COLUMNS} FROM waits WHERE waits.context_id IN (:keys)
    UNION ALL
    SELECT runs.context_id, {_WAIT_COLUMNS} FROM runs CROSS JOIN waits
    WHERE runs.context_id IN (:keys)
        AND waits.context_id > runs.context_id || '/' AND waits.context_id < runs.context_id || '0'
    ORDER BY created_at, context_id, call_id LIMIT :limit"""  # noqa: S608  # names of the schema
SELECT_RUNS_AT_WORK = """
    SELECT runs.context_id FROM runs JOIN feeds ON feeds.context_id = runs.context_id
    WHERE runs.context_id IN (:keys) AND feeds.token > runs.asked_at || '/~'"""
SELECT_WAIT_COUNT = "SELECT count(*) FROM waits"
PUT_WAIT = build_insert("waits", "(context_id, call_id) DO NOTHING RETURNING call_id")
DELETE_WAIT = "DELETE FROM waits WHERE context_id = :context_id AND call_id = :call_id"
OUTBOX_COLUMNS = "stream, seq, target, context_id, type, created_at, taken"
# Rows that another deliverer is about to take are left out on PostgreSQL; on SQLite there is one writer at a time.
# In WITH: a plan may run a subquery again for each row, and would take more than the limit.
TAKE_OUTBOX = f"""
    WITH free AS (
        SELECT stream, seq, target FROM outbox WHERE target = :target AND leased_until <= :now
        ORDER BY created_at, stream, seq LIMIT :limit {{skip_locked}}
    )
    UPDATE outbox SET owner = :owner, leased_until = :until, taken = taken + 1
    WHERE (stream, seq, target) IN (SELECT stream, seq, target FROM free)
    RETURNING {OUTBOX_COLUMNS}"""  # noqa: S608  # a constant
DELETE_OUTBOX = """
    DELETE FROM outbox WHERE stream = :stream AND seq = :seq AND target = :target AND owner = :owner RETURNING seq"""


def _build_audit_insert(on_conflict: str) -> str:
    """Build the INSERT of a row of the audit trail, with the labels of its subject's run, where the store has that."""
    values = [
        f"coalesce((SELECT {column} FROM runs WHERE context_id = :subject), :{column})"  # noqa: S608  # a constant
        if column in ("agent", "tenant", "user_id")
        else f":{column}"
        for column in TABLES["audit"]
    ]
    columns = ", ".join(TABLES["audit"])
    return f"INSERT INTO audit ({columns}) VALUES ({', '.join(values)}) ON CONFLICT {on_conflict}"  # noqa: S608  # constants


INSERT_AUDIT = _build_audit_insert("DO NOTHING")
COUNT_REFUSED = _build_audit_insert(
    "(id) DO UPDATE SET refused = excluded.refused, count = audit.count + 1, last_at = excluded.last_at"
)
DELETE_AUDIT = "DELETE FROM audit WHERE id = :id RETURNING id"
SELECT_ANSWERS = """
    SELECT answer FROM idempotency
    WHERE key >= :prefix AND key < :end AND expires_at > :now AND answer IS NOT NULL ORDER BY key LIMIT :limit"""
SELECT_AUDIT = (
    f"SELECT {', '.join(TABLES['audit'])} FROM audit WHERE {{conditions}} ORDER BY at DESC, id DESC LIMIT :limit"  # noqa: S608  # constants
)
# A key is free when its time is over, or its request counts as lost; it is the owner's own if an answer was lost.
CLAIM_IDEMPOTENCY = build_insert(
    "idempotency",
    """(key) DO UPDATE SET request_hash = excluded.request_hash, owner = excluded.owner,
        leased_until = excluded.leased_until, answer = NULL, created_at = excluded.created_at,
        expires_at = excluded.expires_at
    WHERE idempotency.expires_at <= excluded.created_at OR (
        idempotency.answer IS NULL AND idempotency.request_hash = excluded.request_hash
        AND (idempotency.leased_until <= excluded.created_at OR idempotency.owner = excluded.owner)
    ) RETURNING key""",
)
SELECT_IDEMPOTENCY = "SELECT request_hash, answer FROM idempotency WHERE key = :key"
# The same answer again is one whose confirmation was lost.
RECORD_ANSWER = """
    UPDATE idempotency SET answer = :answer
    WHERE key = :key AND owner = :owner AND (answer IS NULL OR answer = :answer) RETURNING key"""
FREE_KEY = "DELETE FROM idempotency WHERE key = :key AND owner = :owner AND answer IS NULL RETURNING key"
# The time once more: on PostgreSQL only that is looked at again, of a row that was claimed meanwhile.
DELETE_EXPIRED_KEYS = """
    DELETE FROM idempotency WHERE key IN (SELECT key FROM idempotency WHERE expires_at <= :now LIMIT :limit)
        AND expires_at <= :now
    RETURNING key"""


def build_key_counts_select(tables: Collection[str] = TABLES.keys()) -> str:
    """Build the statement that counts the encrypted rows of those ``tables`` that have a key, by table and key. It
    reads indexes that have no other rows."""
    return " UNION ALL ".join(
        f"SELECT '{table}', key_id, count(*) FROM {table} WHERE key_id IS NOT NULL GROUP BY key_id"  # noqa: S608  # names of the schema
        for table, columns in TABLES.items()
        if "key_id" in columns and table in tables
    )


def group_by_key(rows: Iterable[Sequence[Any]]) -> dict[str, dict[str, int]]:
    """Return the rows of that statement as the counts of each key, by table."""
    counts: dict[str, dict[str, int]] = {}
    for table, key_id, count in rows:
        counts.setdefault(key_id, {})[table] = count
    return counts


def _get_audit_values(row: AuditRow) -> dict[str, Any]:
    values = asdict(cut_audit_row(row))
    return values | {"user_id": values.pop("user")}


class SurfaceTables(TokenTables, GrantTables, DecisionTables, WebhookTables, UsageTables):
    """The methods of :class:`perdure.ports.surfaces.Surfaces`, for a store in a database."""

    _now: Callable[[], str]

    clock = ""
    """Reads the clock that leases are compared with; "" for this machine's: processes of a file are on one machine."""

    async def _read_clock(self) -> str:
        """Return the time that all processes of the store agree on: machines may differ by more than a lease."""
        rows = (
            await self._select_rows(self.clock) if self.clock and self._now is format_utc_now else []
        )  # else a test's
        return timestamp(rows[0][0]) if rows else self._now()

    async def list_waits(
        self,
        *,
        agent: str | None = None,
        kind: PendingKind | None = None,
        by_expiry: bool = False,
        after: WaitCursor | None = None,
        limit: int = 100,
    ) -> list[WaitRow]:
        """See :class:`perdure.ports.surfaces.Waits`."""
        order = "expires_at" if by_expiry else "created_at"
        conditions = ["expires_at IS NOT NULL" if by_expiry else "true"]
        values: dict[str, Any] = {"limit": limit}
        for name, value in (("agent", agent), ("kind", kind)):
            if value is not None:
                conditions.append(f"{name} = :{name}")
                values[name] = value
        if after is not None:
            conditions.append(f"({order}, waits.context_id, call_id) > (:at, :context_id, :call_id)")
            values |= after._asdict()
        sql = SELECT_WAITS.format(conditions=" AND ".join(conditions), order=order)
        rows = await self._select_rows(sql, **values)
        return [replace(WaitRow(*row[:-1]), body=None if row[-1] is None else as_bytes(row[-1])) for row in rows]

    async def list_run_waits(self, context_ids: Sequence[str], *, limit: int = 1000) -> dict[str, RunWaits]:
        """See :class:`perdure.ports.surfaces.Waits`."""
        unique = list(dict.fromkeys(context_ids))
        found: dict[str, list[WaitRow]] = {context_id: [] for context_id in unique}
        at_work: set[str] = set()
        for start in range(0, len(unique), MAX_KEYS):
            statement, keys = bind_keys(SELECT_RUN_WAITS, unique[start : start + MAX_KEYS])
            for context_id, *row in await self._select_rows(statement, **keys, limit=limit):
                found[context_id].append(WaitRow(*row))
            statement, keys = bind_keys(SELECT_RUNS_AT_WORK, unique[start : start + MAX_KEYS])
            at_work |= {row[0] for row in await self._select_rows(statement, **keys)}
        return {
            context_id: RunWaits(tuple(rows), is_at_work=context_id in at_work) for context_id, rows in found.items()
        }

    async def count_waits(self, *, agent: str | None = None) -> int:
        """See :class:`perdure.ports.surfaces.Waits`."""
        if agent is None:
            rows = await self._select_rows(SELECT_WAIT_COUNT)
        else:
            rows = await self._select_rows(f"{SELECT_WAIT_COUNT} WHERE agent = :agent", agent=agent)
        return int(rows[0][0]) if rows else 0

    async def put_wait(self, row: WaitRow) -> None:
        """See :class:`perdure.ports.surfaces.Waits`."""
        values = {name: value for name, value in asdict(row).items() if name != "body"}
        await self._change_rows(PUT_WAIT, **values, seq=0)

    async def remove_wait(self, context_id: str, call_id: str, hash: str | None = None) -> None:
        """See :class:`perdure.ports.surfaces.Waits`."""
        row = {"context_id": context_id, "call_id": call_id}
        if hash is None:
            await self._change_rows(DELETE_WAIT, **row)
        else:
            await self._change_rows(f"{DELETE_WAIT} AND hash = :hash", **row, hash=hash)

    async def take_outbox(self, owner: str, *, target: str, lease_seconds: float, limit: int = 100) -> list[OutboxRow]:
        """See :class:`perdure.ports.surfaces.Outbox`."""
        now = await self._read_clock()
        rows = await self._change_rows(
            TAKE_OUTBOX.format(skip_locked=self.skip_locked),
            owner=owner,
            target=target,
            now=now,
            until=add_seconds(now, lease_seconds),
            limit=limit,
        )
        taken = [OutboxRow(*row) for row in rows]
        return sorted(taken, key=lambda row: (row.created_at, row.stream, row.seq))

    async def delete_outbox(self, owner: str, rows: Sequence[OutboxRow]) -> int:
        """See :class:`perdure.ports.surfaces.Outbox`."""
        deleted = 0
        for row in rows:
            name = {"stream": row.stream, "seq": row.seq, "target": row.target}
            deleted += len(await self._change_rows(DELETE_OUTBOX, **name, owner=owner))
        return deleted

    async def record_audit(self, row: AuditRow) -> None:
        """See :class:`perdure.ports.surfaces.Audit`."""
        await self._change_rows(INSERT_AUDIT, **_get_audit_values(row))

    async def record_refused_audit(self, row: AuditRow) -> None:
        """See :class:`perdure.ports.surfaces.Audit`."""
        await self._change_rows(COUNT_REFUSED, **_get_audit_values(build_refusal_row(row)))
        await self._change_rows(DELETE_AUDIT, id=row.id)

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
        """See :class:`perdure.ports.surfaces.Audit`."""
        conditions, values = ["at >= :since"], dict[str, Any](since=since, limit=limit)
        prefix = verb[:-1] if verb is not None and verb.endswith("*") else None
        for condition, name, value in (
            ("subject = :subject", "subject", subject),
            ("by = :by", "by", by),
            ("verb = :verb", "verb", verb if prefix is None else None),
            (f"substr(verb, 1, {len(prefix or '')}) = :prefix", "prefix", prefix),
            ("at < :until", "until", until or None),
        ):
            if value is not None:
                conditions.append(condition)
                values[name] = value
        if refused:
            conditions.append("refused IS NOT NULL")
        if tenants is not None:
            own, names = build_in("tenant", "tenant", tenants)
            conditions.append(own)
            values |= names
        if after is not None:
            conditions.append("(at, id) < (:last_at, :last_id)")
            values |= {"last_at": after[0], "last_id": after[1]}
        rows = await self._select_rows(SELECT_AUDIT.format(conditions=" AND ".join(conditions)), **values)
        return [AuditRow(*row) for row in rows]

    async def claim_idempotency(
        self, key: str, request_hash: str, owner: str, *, lease_seconds: float, keep_seconds: float
    ) -> IdempotencyClaim:
        """See :class:`perdure.ports.surfaces.Idempotency`."""
        check_idempotency_key(key)
        now = await self._read_clock()
        times = {"leased_until": add_seconds(now, lease_seconds), "expires_at": add_seconds(now, keep_seconds)}
        claim = {"key": key, "request_hash": request_hash, "owner": owner, "answer": None, "created_at": now}
        while True:
            if await self._change_rows(CLAIM_IDEMPOTENCY, **claim, **times):
                return IdempotencyClaim("new")
            if rows := await self._select_rows(SELECT_IDEMPOTENCY, key=key):  # else it was freed meanwhile
                recorded_hash, answer = rows[0]
                return build_idempotency_claim(
                    request_hash, recorded_hash, None if answer is None else as_bytes(answer)
                )

    async def list_idempotency_answers(self, prefix: str, limit: int) -> list[bytes]:
        """See :class:`perdure.ports.surfaces.Idempotency`."""
        now, end = await self._read_clock(), f"{prefix}\U0010ffff"
        rows = await self._select_rows(SELECT_ANSWERS, prefix=prefix, end=end, now=now, limit=limit)
        return [as_bytes(answer) for (answer,) in rows]

    async def complete_idempotency(self, key: str, owner: str, answer: bytes | None) -> bool:
        """See :class:`perdure.ports.surfaces.Idempotency`."""
        if answer is None:
            return bool(await self._change_rows(FREE_KEY, key=key, owner=owner))
        check_idempotency_answer(answer)
        return bool(await self._change_rows(RECORD_ANSWER, key=key, owner=owner, answer=answer))

    async def delete_expired_idempotency(self, limit: int = 1000) -> int:
        """See :class:`perdure.ports.surfaces.Idempotency`."""
        return len(await self._change_rows(DELETE_EXPIRED_KEYS, now=await self._read_clock(), limit=limit))

    async def count_keys(self) -> dict[str, dict[str, int]]:
        """See :class:`perdure.ports.surfaces.EncryptedBodies`."""
        return group_by_key(await self._select_rows(build_key_counts_select()))
