"""The store of tests: the public fake of the ``Store`` port, a database in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import StoreError
from ..ports.store import Commit
from ..ports.times import format_utc_now
from ..store.sqlite_memory import SqliteMemoryStore

T = TypeVar("T")


class MemoryStore(SqliteMemoryStore):
    """A ``Store`` in memory, for tests of code that uses one: SQLite without a file, with all that the real one does.

    It needs no ``open``, and ``close`` keeps what is in it. A test reads ``commits`` for the writes, in order, sets
    ``failure`` to make every call raise, and looks into the tables or damages them with ``run_sql``. ``now`` is its
    clock.
    """

    def __init__(self, *, now: Callable[[], str] | None = None) -> None:
        super().__init__(now=now or format_utc_now)
        self.failure: StoreError | None = None
        self.commits: list[Commit] = []

    async def commit(self, commit: Commit) -> bytes | None:
        """See :class:`perdure.ports.store.Journal`."""
        recorded = await super().commit(commit)
        self.commits.append(commit)
        return recorded

    async def nudge(self, run_id: str) -> None:
        """See :class:`perdure.ports.nudges.Nudges`."""
        if self.failure is not None:
            raise self.failure
        await super().nudge(run_id)

    def _run(self, operation: Callable[..., T], *arguments: Any) -> T:
        if self.failure is not None:
            raise self.failure
        return super()._run(operation, *arguments)

    def run_sql(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a statement, whose parameters are named (``:hash``), and return its rows."""
        return super()._run(lambda database: database.run(sql, **values).fetchall())
