"""A store that an earlier version of perdure made, with what is in it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from perdure.errors import StoreVersionError
from perdure.ports import Batch, Claim, Commit, MemoryWrite, NewEvent, Node, Outcome, RunRow, TurnRow, token
from perdure.store import migrations
from perdure.store.session import Session, SqliteDatabase
from perdure.store.sqlite import SqliteStore
from perdure.types.events import ModelCompleted, RunEvent
from perdure.types.lineage import Lineage, PathStep

THEN = "2025-12-24T10:00:00.000000+00:00"
RUN = RunRow("c", "support", "s", "n2", "running", 3, b"{}", THEN, THEN, THEN)

# As those versions wrote it. Not by today's operations: they may need today's tables.
DATA = """
INSERT INTO meta VALUES (1, 'the-store', 'THEN');
INSERT INTO nodes VALUES ('n1', NULL, x'5b315d'), ('n2', 'n1', x'5b325d');
INSERT INTO blobs VALUES ('b', x'626c6f62');
INSERT INTO journal VALUES ('done', 'model', NULL, 0, x'7b7d', NULL, 'THEN'),
                           ('begun', NULL, 'somebody', 2, NULL, 'THEN', NULL);
INSERT INTO runs VALUES ('c', 'support', 's', 'n2', 'running', 3, x'7b7d', 'THEN', 'THEN', 'THEN');
"""
DATA_2 = """
INSERT INTO turns VALUES ('c', 'old', 'completed', 'n1', x'7b7d', 'THEN', 'THEN', 'THEN');
INSERT INTO sent VALUES ('c', 'said', 'old');
INSERT INTO memory VALUES ('old', 'k', x'31', 'THEN');
"""
DATA_3 = """
INSERT INTO events VALUES ('old', 1, 't', 'run', 'run/s', x'7b227374617465223a2273746172746564227d', NULL);
INSERT INTO events VALUES ('old/1', 1, 't1', 'run', 'run/s1', x'7b227374617465223a2273746172746564227d', NULL);
INSERT INTO events VALUES ('old/1', 2, 't1', 'model.delta', NULL, x'7b2274657874223a2278227d', NULL);
INSERT INTO feeds VALUES ('old', 1, 'THEN/000001', 0, 0), ('old/1', 2, 'THEN/000001', 2, 2);
"""
BEFORE = {"0001": DATA, "0002": DATA + DATA_2, "0003": DATA + DATA_2 + DATA_3}
NEW = {"0001": {"turns", "sent", "memory", "events", "feeds"}, "0002": {"events", "feeds"}, "0003": set()}
"""Tables that came later."""


def version(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT version_num FROM perdure_version")]


def tables(path: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


@pytest.fixture(params=["0001", "0002", "0003"])
def before(request: pytest.FixtureRequest) -> str:
    """The version that made the store."""
    return str(request.param)


@pytest.fixture
def old(before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "old.db"

    def make(database: SqliteDatabase) -> None:
        with database.alchemy() as connection:
            migrations.upgrade(connection)
        for statement in BEFORE[before].replace("THEN", THEN).split(";\n"):
            database.execute(statement)

    with monkeypatch.context() as patch:
        patch.setattr(migrations, "CURRENT", before)
        session = Session(path, write=True, busy_timeout=0)
        session.run(make)
        session.close()
    assert version(path) == [before]
    assert not tables(path) & NEW[before]
    return path


@contextlib.asynccontextmanager
async def opened(path: Path):
    store = SqliteStore(f"sqlite:///{path}", busy_timeout=30)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def test_it_keeps_its_data_and_works(old: Path, before: str):
    turn = TurnRow("c", "t", "completed", "n3", b"{}", asked_at=THEN)
    for _ in range(2):  # the second time it is an ordinary store
        async with opened(old) as store:
            assert store.store_id == "the-store"
            assert await store.nodes("n2") == [Node("n1", None, b"[1]"), Node("n2", "n1", b"[2]")]
            assert await store.blobs(["b"]) == {"b": b"blob"}
            assert await store.find(["done", "begun"]) == {"done": b"{}"}
            assert await store.claim("begun", "me") == Claim("begun", starts=2)
            assert await store.run("c") == RUN
            assert await store.runs(agent="support", status="running") == [RUN]
            if before > "0001":
                assert await store.turn("c", "old") == TurnRow("c", "old", "completed", "n1", b"{}", asked_at=THEN)
                assert await store.turn_of("c", "said") == "old"
                assert await store.recall_all("old") == {"k": b"1"}
            assert await store.events("c") == []
            assert not await store.changed("c", 0, 0)
        assert version(old) == [migrations.CURRENT]
    async with opened(old) as store:
        answered = Commit(
            nodes=[Node("n3", "n2", b"[3]")],
            outcome=Outcome("begun", "tool", b"1"),
            turn=TurnRow("c", "t", "completed", "n3", b"{}", ["m"], THEN),
            memory=[MemoryWrite("n", "k", b"1")],
            events=Batch("c", [NewEvent(RunEvent(state="waiting"))], token(THEN), True),
        )
        assert await store.commit(answered) == b"1"
    async with opened(old) as store:
        assert [node.hash for node in await store.nodes("n3")] == ["n1", "n2", "n3"]
        assert await store.turn("c", "t") == turn
        assert await store.turn_of("c", "m") == "t"
        assert await store.recall_all("n") == {"k": b"1"}
        assert [(row.seq, row.type) for row in await store.events("c")] == [(1, "run")]


async def test_a_subagent_of_then_goes_on_in_its_own_order(old: Path, before: str):
    """Its events were numbered by themselves; whatever its worker says now, they stay so, and nothing is lost."""
    if before < "0003":
        pytest.skip("that one kept no events")
    lineage = Lineage(root="old", path=(PathStep(agent="a", call_id="c"),))
    async with opened(old) as store:
        assert [(row.seq, row.type) for row in await store.events("old/1")] == [(1, "run"), (2, "model.delta")]
        new = [NewEvent(ModelCompleted(text="x")), NewEvent(RunEvent(state="started"), key="run/s1")]
        await store.commit(Commit(events=Batch("old/1", new, token(THEN), True, lineage)))
        await store.append(Batch("old", [NewEvent(RunEvent(state="waiting"))], token(THEN), True))
        rows = await store.events("old/1")
        assert [(row.seq, row.type, row.spans) for row in rows] == [(1, "run", ()), (3, "model.completed", ((2, 2),))]
        assert [(row.seq, row.child) for row in await store.events("old")] == [(1, None), (2, None)]


def layout(connection: sa.Connection) -> dict[str, str]:
    return {row.name: row.sql for row in connection.exec_driver_sql("SELECT name, sql FROM sqlite_master")}


def test_it_gets_the_tables_that_a_new_store_has(old: Path):
    made = []
    for url in (f"sqlite:///{old}", "sqlite://"):
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            migrations.upgrade(connection)
            made.append(layout(connection))
        engine.dispose()
    assert made[0] == made[1]


async def test_what_fails_while_it_is_migrated_leaves_it_old(old: Path, before: str, monkeypatch: pytest.MonkeyPatch):
    made = tables(old)
    with monkeypatch.context() as patch:
        patch.setattr("perdure.store.sql.name_store", lambda *_: 1 / 0)  # inside the transaction, behind the migration
        with pytest.raises(ZeroDivisionError):
            async with opened(old):
                pass
    assert version(old) == [before]
    assert tables(old) == made
    async with opened(old) as store:
        assert await store.run("c") == RUN


async def test_clients_that_open_it_at_once(old: Path):
    async with contextlib.AsyncExitStack() as stack:
        stores = await asyncio.gather(*[stack.enter_async_context(opened(old)) for _ in range(8)])
        assert {store.store_id for store in stores} == {"the-store"}
        for (i, writer), reader in itertools.product(enumerate(stores), stores[:2]):
            await writer.commit(Commit(memory=[MemoryWrite("n", f"{i}", b"1")]))
            assert await reader.recall("n", f"{i}") == b"1"
    assert version(old) == [migrations.CURRENT]


async def test_who_has_it_open_goes_on_while_another_migrates(old: Path, before: str, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "CURRENT", before)
        earlier = SqliteStore(f"sqlite:///{old}")
        await earlier.open()
    assert version(old) == [before]
    try:
        await earlier.commit(Commit(outcome=Outcome("a", "tool", b"1")))
        async with opened(old) as store:
            assert version(old) == [migrations.CURRENT]
            await earlier.commit(Commit(outcome=Outcome("b", "tool", b"2"), run=RUN))
            assert await store.find(["a", "b"]) == await earlier.find(["a", "b"]) == {"a": b"1", "b": b"2"}
    finally:
        await earlier.close()


async def test_an_earlier_perdure_refuses_the_new_one(old: Path, before: str, monkeypatch: pytest.MonkeyPatch):
    async with opened(old):
        pass
    newest = migrations.CURRENT
    monkeypatch.setattr(migrations, "CURRENT", before)
    with pytest.raises(StoreVersionError, match=f"schema {newest}, this perdure knows up to {before}") as caught:
        async with opened(old):
            pass
    assert "Upgrade" in (caught.value.hint or "")


OPENER = """
import asyncio, json, sys
from perdure.ports import Commit, MemoryWrite
from perdure.store import open_store

async def main(url, name):
    store = open_store(url)
    print("ready", flush=True)
    sys.stdin.readline()
    await store.open()
    await store.commit(Commit(memory=[MemoryWrite("n", name, b"1")]))
    row = await store.run("c")
    await store.close()
    print(json.dumps([store.store_id, row.head]))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("before", ["0001"], indirect=True)  # all migrations there are
async def test_processes_that_open_it_at_once(old: Path):
    """They migrate it once: to make a table for the second time is an error."""
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", OPENER, f"sqlite:///{old}", f"k{i}"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for i in range(2)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        answers = [json.loads(process.communicate()[0]) for process in processes]
    assert answers == [["the-store", "n2"]] * 2
    assert version(old) == [migrations.CURRENT]
    async with opened(old) as store:
        assert await store.recall_all("n") == {f"k{i}": b"1" for i in range(2)}
