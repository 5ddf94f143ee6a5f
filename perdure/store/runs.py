"""Reads and writes the rows of runs and turns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from ..ports import RunRow, TurnRow
from ..types.run_ids import build_run_id_error
from .schema import MAX_KEYS, Database, bind_keys, build_insert, build_upsert, shorten_key

# Not the row of another's run: write_run finds out.
UPSERT_RUN = f"""
    {build_upsert("runs", "context_id")}
    AND runs.tenant IS NOT DISTINCT FROM excluded.tenant AND runs.user_id IS NOT DISTINCT FROM excluded.user_id"""
SELECT_LABELS = "SELECT tenant, user_id FROM runs WHERE context_id = :context_id"
UPSERT_TURN = build_upsert("turns", "context_id", "task_id")
INSERT_SENT_MESSAGE = build_insert("sent")
SELECT_RUNS = """
    SELECT runs.context_id, agent, scope, head, status, iterations, {result}, asked_at, created_at, updated_at,
        feeds.root, tenant, user_id
    FROM runs LEFT JOIN feeds ON feeds.context_id = runs.context_id"""
SELECT_RUN = f"{SELECT_RUNS.format(result='result')} WHERE runs.context_id = :context_id"
SELECT_RUNS_BY_ID = f"{SELECT_RUNS.format(result='NULL')} WHERE runs.context_id IN (:keys)"
NEWEST_RUNS_FIRST = "ORDER BY created_at DESC, runs.context_id DESC LIMIT :limit"
SELECT_TURN = """
    SELECT status, head, result, asked_at FROM turns WHERE context_id = :context_id AND task_id = :task_id"""
SELECT_TURNS = """
    SELECT context_id, task_id, status, head, asked_at, created_at, updated_at FROM turns
    WHERE context_id = :context_id {after} ORDER BY created_at DESC, task_id DESC LIMIT :limit"""
SELECT_TURN_OF_MESSAGE = "SELECT task_id FROM sent WHERE context_id = :context_id AND message_id = :message_id"


def write_run(database: Database, run: RunRow, now: str, key_id: str | None) -> None:
    """Write the run, unless it is too late. Raises ``RunIdError`` for the id of another's run."""
    names = {"context_id": run.context_id, "agent": run.agent, "scope": run.scope, "asked_at": run.asked_at}
    row = {"head": run.head, "status": run.status, "iterations": run.iterations, "result": run.result}
    labels = {"tenant": run.tenant, "user_id": run.user}
    times = {"created_at": now, "updated_at": now}
    if database.run(UPSERT_RUN, **names, **row, **labels, **times, key_id=key_id).rowcount:
        return
    found = database.run(SELECT_LABELS, context_id=run.context_id).fetchone()
    if tuple(found) != (run.tenant, run.user):  # else it is late
        raise build_run_id_error()


def write_turn(database: Database, turn: TurnRow, now: str, key_id: str | None) -> None:
    """Write the turn and its messages. A row that is too late leaves no messages either."""
    names = {"context_id": turn.context_id, "task_id": turn.task_id}
    row = {"status": turn.status, "head": turn.head, "result": turn.result, "asked_at": turn.asked_at}
    if database.run(UPSERT_TURN, **names, **row, created_at=now, updated_at=now, key_id=key_id).rowcount == 0:
        return
    for message_id in sorted(set(turn.messages)):
        database.run(INSERT_SENT_MESSAGE, **names, message_id=shorten_key(message_id))


def read_run(database: Database, context_id: str) -> RunRow | None:
    """Return one row of the runs, or None."""
    row = database.run(SELECT_RUN, context_id=context_id).fetchone()
    return None if row is None else RunRow(*row)


def read_turn(database: Database, context_id: str, task_id: str) -> TurnRow | None:
    """Return one row of the turns, or None."""
    row = database.run(SELECT_TURN, context_id=context_id, task_id=task_id).fetchone()
    if row is None:
        return None
    status, head, result, asked_at = row
    return TurnRow(context_id, task_id, status, head, result, asked_at=asked_at)


def find_turn_of_message(database: Database, context_id: str, message_id: str) -> str | None:
    """Return the ``task_id`` of the first turn that took a message."""
    message_key = shorten_key(message_id)
    row = database.run(SELECT_TURN_OF_MESSAGE, context_id=context_id, message_id=message_key).fetchone()
    return None if row is None else str(row[0])


class ListTables:
    """The lists of :class:`perdure.ports.Runs` and :class:`perdure.ports.Turns`, for a store in a database."""

    @abstractmethod
    async def _select_rows(self, statement: str, **values: Any) -> list[Sequence[Any]]:
        """Return the rows of a statement that reads."""

    async def get_runs(self, context_ids: Sequence[str]) -> dict[str, RunRow]:
        """See :class:`perdure.ports.Runs`."""
        unique, found = list(dict.fromkeys(context_ids)), dict[str, RunRow]()
        for start in range(0, len(unique), MAX_KEYS):
            statement, keys = bind_keys(SELECT_RUNS_BY_ID, unique[start : start + MAX_KEYS])
            found |= {row[0]: RunRow(*row) for row in await self._select_rows(statement, **keys)}
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
        """See :class:`perdure.ports.Runs`."""
        given = {"agent": agent, "status": status, "tenant": tenant, "user_id": user}
        filters = {name: value for name, value in given.items() if value is not None}
        conditions = [f"{name} = :{name}" for name in filters] + (["feeds.root IS NULL"] if roots else [])
        if created_from is not None:
            conditions.append("created_at >= :created_from")
            filters["created_from"] = created_from
        if created_before is not None:
            conditions.append("created_at < :created_before")
            filters["created_before"] = created_before
        if after is not None:
            conditions.append("(created_at, runs.context_id) < (:at, :after)")
            filters |= {"at": after[0], "after": after[1]}
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        statement = f"{SELECT_RUNS.format(result='NULL')} {where} {NEWEST_RUNS_FIRST}"
        return [RunRow(*row) for row in await self._select_rows(statement, **filters, limit=limit)]

    async def list_turns(
        self, context_id: str, *, after: tuple[str, str] | None = None, limit: int = 100
    ) -> list[TurnRow]:
        """See :class:`perdure.ports.Turns`."""
        values: dict[str, Any] = {"context_id": context_id, "limit": limit}
        if after is not None:
            values |= {"at": after[0], "after": after[1]}
        condition = "" if after is None else "AND (created_at, task_id) < (:at, :after)"
        rows = await self._select_rows(SELECT_TURNS.format(after=condition), **values)
        return [
            TurnRow(run_id, task_id, status, head, asked_at=asked_at, created_at=created_at, updated_at=updated_at)
            for run_id, task_id, status, head, asked_at, created_at, updated_at in rows
        ]
