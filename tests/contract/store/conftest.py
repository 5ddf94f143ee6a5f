"""Every adapter of the ``Store`` port, one line each."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

import pytest

from perdure.ports.store import Store
from perdure.store.objects import add_object_store
from perdure.store.postgres import PostgresStore
from perdure.store.sqlite import SqliteStore
from perdure.testing.store import MemoryStore
from tests.support.postgres import Databases, build_pooled_url, run_pgbouncer


@dataclass
class Clock:
    """A clock that ticks with every look at it."""

    hour: str = "2026-01-01T00"
    _ticks: Iterator[int] = field(default_factory=itertools.count)

    def __call__(self) -> str:
        return f"{self.hour}:00:00.{next(self._ticks):06d}+00:00"


@dataclass
class Database:
    """A database that stores are opened on; ``url`` where another process can reach it."""

    make: Callable[[], Store]
    url: str | None = None
    is_proxied: bool = False
    clock: Clock = field(default_factory=Clock)
    opened: list[Store] = field(default_factory=list)

    async def open(self) -> Store:
        store = self.make()
        await store.open()
        self.opened.append(store)
        return store

    def other_process(self, *, also_proxied: bool = False) -> str:
        if self.url is None:
            pytest.skip("lives in one process")
        if self.is_proxied and not also_proxied:
            pytest.skip("takes long, and a proxy changes nothing of it")
        return self.url


def memory(_: pytest.FixtureRequest) -> Database:
    now = Clock()
    store = MemoryStore(now=now)
    return Database(lambda: store, clock=now)


def sqlite(request: pytest.FixtureRequest) -> Database:
    url, now = f"sqlite:///{request.getfixturevalue('tmp_path')}/store.db", Clock()
    return Database(lambda: SqliteStore(url, now=now), url, clock=now)


def objects(request: pytest.FixtureRequest) -> Database:
    """SQLite, and every blob that has its own hash as its name is an object."""
    folder, now = request.getfixturevalue("tmp_path"), Clock()
    url = f"sqlite:///{folder}/store.db"
    return Database(lambda: add_object_store(SqliteStore(url, now=now), f"file://{folder}/objects", 0), clock=now)


def postgres(request: pytest.FixtureRequest) -> Database:
    databases: Databases = request.getfixturevalue("postgres_databases")
    url, now = databases.make_store(), Clock()
    return Database(lambda: PostgresStore(url, now=now), url, clock=now)


def postgres_objects(request: pytest.FixtureRequest) -> Database:
    """PostgreSQL, and every blob that has its own hash as its name is an object."""
    databases: Databases = request.getfixturevalue("postgres_databases")
    url, place, now = databases.make_store(), f"file://{request.getfixturevalue('tmp_path')}/objects", Clock()
    return Database(lambda: add_object_store(PostgresStore(url, now=now), place, 0), clock=now)


def pgbouncer(request: pytest.FixtureRequest) -> Database:
    """PostgreSQL behind a proxy that pools by transaction."""
    databases: Databases = request.getfixturevalue("postgres_databases")
    url, now = build_pooled_url(databases.make_store(), request.getfixturevalue("pgbouncer_port")), Clock()
    return Database(lambda: PostgresStore(url, now=now), url, is_proxied=True, clock=now)


ADAPTERS = [
    memory,
    sqlite,
    pytest.param(objects, marks=pytest.mark.slow),  # only blobs differ: test_objects.py
    *(pytest.param(make, marks=pytest.mark.postgres) for make in (postgres, postgres_objects, pgbouncer)),
]


@pytest.fixture(scope="session")
def pgbouncer_port(postgres_databases: Databases) -> Iterator[int]:
    with run_pgbouncer(postgres_databases.server_url) as port:
        yield port


@pytest.fixture(params=ADAPTERS, ids=lambda make: make.__name__)
async def database(request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    database = request.param(request)
    async with contextlib.AsyncExitStack() as stack:
        yield database
        for store in database.opened:
            stack.push_async_callback(store.close)


@pytest.fixture
async def store(database: Database) -> Store:
    return await database.open()


@pytest.fixture(scope="module")
def postgres_url(postgres_databases: Databases) -> str:
    return postgres_databases.make()
