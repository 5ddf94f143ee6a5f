"""Every adapter of the ``Store`` port, one line each."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from perdure.ports import Store
from perdure.store.objects import add_object_store
from perdure.store.sqlite import SqliteStore
from perdure.testing.store import MemoryStore


def clock() -> Callable[[], str]:
    """A clock that ticks with every look at it."""
    ticks = itertools.count()
    return lambda: f"2026-01-01T00:00:00.{next(ticks):06d}+00:00"


@dataclass
class Database:
    """A database that stores are opened on; ``url`` where another process can reach it."""

    make: Callable[[], Store]
    url: str | None = None
    opened: list[Store] = field(default_factory=list)

    async def open(self) -> Store:
        store = self.make()
        await store.open()
        self.opened.append(store)
        return store

    def other_process(self) -> str:
        if self.url is None:
            pytest.skip("lives in one process")
        return self.url


def memory(_: str) -> Database:
    store = MemoryStore(now=clock())
    return Database(lambda: store)


def sqlite(folder: str) -> Database:
    url, now = f"sqlite:///{folder}/store.db", clock()
    return Database(lambda: SqliteStore(url, now=now), url)


def objects(folder: str) -> Database:
    """SQLite, and every blob that has its own hash as its name is an object."""
    url, blobs, now = f"sqlite:///{folder}/store.db", f"file://{folder}/objects", clock()
    return Database(lambda: add_object_store(SqliteStore(url, now=now), blobs, 0))


@pytest.fixture(params=[memory, sqlite, objects], ids=lambda make: make.__name__)
async def database(request: pytest.FixtureRequest, tmp_path: object) -> AsyncIterator[Database]:
    database = request.param(str(tmp_path))
    async with contextlib.AsyncExitStack() as stack:
        yield database
        for store in database.opened:
            stack.push_async_callback(store.close)


@pytest.fixture
async def store(database: Database) -> Store:
    return await database.open()
