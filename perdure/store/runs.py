"""Reads and writes the rows of runs and turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from ..ports.run_lists import SCANNED_RUNS, FailureCount, RunFilter, encode_words, summarize_text
from ..ports.store import FIRST_MESSAGE_CHARS, RunRow, TurnRow
from ..types.run_ids import build_run_id_error
from .schema import Database, Tables, as_bytes, encode_sessions, shorten_key, split_keys
from .statements import load_statements

SQL = load_statements("runs")


def write_run(database: Database, run: RunRow, now: str, key_id: str | None) -> None:
    """Write the run, unless it is too late. Raises ``RunIdError`` for the id of another's run."""
    names = {"context_id": run.context_id, "agent": run.agent, "scope": run.scope, "asked_at": run.asked_at}
    row = {"head": run.head, "status": run.status, "iterations": run.iterations, "result": run.result}
    labels = {"tenant": run.tenant, "user_id": run.user}
    texts = {"first_message": run.first_message, "error_type": run.error_type, "error": run.error}
    times = {"created_at": now, "updated_at": now}
    if database.run(SQL.write_run, **names, **row, **labels, **texts, **times, key_id=key_id).rowcount:
        return
    found = database.run(SQL.get_labels, context_id=run.context_id).fetchone()
    if tuple(found) != (run.tenant, run.user):  # else it is late
        raise build_run_id_error()


def write_turn(database: Database, turn: TurnRow, now: str, key_id: str | None) -> None:
    """Write the turn and its messages. A row that is too late leaves no messages either."""
    names = {"context_id": turn.context_id, "task_id": turn.task_id}
    row = {"status": turn.status, "head": turn.head, "result": turn.result, "asked_at": turn.asked_at}
    if database.run(SQL.write_turn, **names, **row, created_at=now, updated_at=now, key_id=key_id).rowcount == 0:
        return
    for message_id in sorted(set(turn.messages)):
        database.run(SQL.insert_sent_message, **names, message_id=shorten_key(message_id))


def read_run(database: Database, context_id: str) -> RunRow | None:
    """Return one row of the runs, or None."""
    row = database.run(SQL.get_run, context_id=context_id).fetchone()
    return None if row is None else RunRow(*row)


def read_turn(database: Database, context_id: str, task_id: str) -> TurnRow | None:
    """Return one row of the turns, or None."""
    row = database.run(SQL.get_turn, context_id=context_id, task_id=task_id).fetchone()
    if row is None:
        return None
    status, head, result, asked_at = row
    return TurnRow(context_id, task_id, status, head, result, asked_at=asked_at)


def find_turn_of_message(database: Database, context_id: str, message_id: str) -> str | None:
    """Return the ``task_id`` of the first turn that took a message."""
    message_key = shorten_key(message_id)
    row = database.run(SQL.find_message_turn, context_id=context_id, message_id=message_key).fetchone()
    return None if row is None else str(row[0])


class ListTables(Tables):
    """The lists of :class:`perdure.ports.store.Runs` and ``Turns``, for a store in a database."""

    async def get_runs(self, context_ids: Sequence[str]) -> dict[str, RunRow]:
        """See :class:`perdure.ports.store.Runs`."""
        found: dict[str, RunRow] = {}
        for keys in split_keys(context_ids):
            found |= {row[0]: RunRow(*row) for row in await self._select_rows(SQL.get_runs, keys=keys)}
        return found

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
        """See :class:`perdure.ports.store.Runs`."""
        at, after_id = after or (None, None)
        rows = await self._select_rows(
            SQL.list_runs,
            agent=agent,
            status=status,
            tenant=tenant,
            user=user,
            roots=roots,
            created_from=created_from,
            created_before=created_before,
            at=at,
            after=after_id,
            limit=limit,
        )
        return [RunRow(*row) for row in rows]

    async def search_runs(
        self, filter: RunFilter, *, after: tuple[str, str] | None = None, limit: int = 100
    ) -> tuple[list[RunRow], tuple[str, str] | None]:
        """See :class:`perdure.ports.store.Runs`."""
        at, after_id = after or (None, None)
        values = asdict(filter)
        tested = {"words": encode_words(values.pop("search")), "updated_from": values.pop("updated_from")}
        tested["error"] = values.pop("error")
        scan = SCANNED_RUNS if any(value is not None for value in tested.values()) else limit
        # Failed runs are few, and have an index by that time; others are looked at one by one.
        failing = filter.error is not None or filter.status == "failed"
        values |= {"failing": failing, "failed_from": filter.updated_from if failing else None}
        values |= {"at": at, "after": after_id}
        found = await self._select_rows(SQL.search_runs, **values, **tested, scan=scan, limit=limit)
        rows = [RunRow(*row) for row in found]
        if len(rows) == limit:
            return rows, (rows[-1].created_at, rows[-1].context_id)
        if scan == limit:
            return rows, None
        end = await self._select_rows(SQL.find_scan_end, **values, skipped=scan - 1)
        return rows, (end[0][0], end[0][1]) if end else None

    async def find_first_messages(self, context_ids: Sequence[str]) -> dict[str, str]:
        """See :class:`perdure.ports.store.Runs`."""
        found: dict[str, str] = {}
        for keys in split_keys(context_ids):
            for name, body in await self._select_rows(SQL.find_first_messages, keys=keys):
                content = json.loads(as_bytes(body)).get("content")
                if isinstance(content, str) and (text := summarize_text(content, FIRST_MESSAGE_CHARS)):
                    found.setdefault(name, text)
        return found

    async def count_failures(
        self,
        since: str,
        *,
        tenants: Sequence[str] | None = None,
        agents: Sequence[str] | None = None,
        sessions: Sequence[str] | None = None,
        limit: int = 20,
    ) -> list[FailureCount]:
        """See :class:`perdure.ports.store.Runs`."""
        rows = await self._select_rows(
            SQL.count_failures,
            since=since,
            tenants=tenants,
            agents=agents,
            sessions=encode_sessions(sessions),
            limit=limit,
        )
        return [FailureCount(*row) for row in rows]

    async def list_turns(
        self, context_id: str, *, after: tuple[str, str] | None = None, limit: int = 100
    ) -> list[TurnRow]:
        """See :class:`perdure.ports.store.Turns`."""
        at, after_id = after or (None, None)
        rows = await self._select_rows(SQL.list_turns, context_id=context_id, at=at, after=after_id, limit=limit)
        return [
            TurnRow(run_id, task_id, status, head, asked_at=asked_at, created_at=created_at, updated_at=updated_at)
            for run_id, task_id, status, head, asked_at, created_at, updated_at in rows
        ]
