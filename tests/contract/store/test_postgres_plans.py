"""No statement of the store reads a large table from its beginning to its end."""

from __future__ import annotations

import asyncpg
import pytest

from perdure.ports.store import (
    Commit,
    EventBatch,
    MemoryWrite,
    NewEvent,
    Node,
    Outcome,
    RunRow,
    TurnRow,
    build_batch_token,
)
from perdure.store.postgres import PostgresStore
from perdure.types.events import LimitReached, ModelCompleted, ModelDelta
from tests.support.postgres import Databases, execute

pytestmark = pytest.mark.postgres

ROWS = """
    INSERT INTO nodes (hash, parent, body, used_on)
        SELECT 'h' || i, CASE WHEN i > 1 THEN 'h' || (i - 1) END, '1', '2026-01-01' FROM generate_series(1, 50000) i;
    INSERT INTO blobs (hash, body, used_on) SELECT 'b' || i, '1', '2026-01-01' FROM generate_series(1, 50000) i;
    INSERT INTO journal (key, kind, starts, outcome) SELECT 'k' || i, 'tool', 1, '1' FROM generate_series(1, 50000) i;
    INSERT INTO runs (context_id, agent, scope, status, iterations, asked_at, created_at, updated_at)
        SELECT 'r' || i, 'a' || i % 5, 's', CASE i % 1000 WHEN 0 THEN 'running' ELSE 'completed' END, 1, '', i, i
        FROM generate_series(1, 50000) i;
    INSERT INTO turns (context_id, task_id, status, asked_at, created_at, updated_at)
        SELECT 'r' || i, 't', 'completed', '', '', '' FROM generate_series(1, 50000) i;
    INSERT INTO sent SELECT 'r' || i % 1000, 'm' || i, 't' FROM generate_series(1, 50000) i;
    INSERT INTO memory SELECT 'n' || i % 10, 'key' || i, '1', '' FROM generate_series(1, 50000) i;
    INSERT INTO feeds (context_id, seq, token, open, first_delta, failing, root, path)
        SELECT 'r' || i, i, '', 0, 0, 0, CASE WHEN i % 10 > 0 THEN 'r' || i / 10 * 10 END,
            CASE WHEN i % 10 > 0 THEN '[{"agent": "a", "call_id": "1"}]' END FROM generate_series(1, 50000) i;
    INSERT INTO events (context_id, seq, type, key, body, child)
        SELECT 'r10', i, 'limit', 'k' || i, '{}',
            CASE WHEN i % 3 = 0 THEN 'r11/' || i % 500 WHEN i % 99 = 7 THEN 'r11' END
        FROM generate_series(1, 50000) i;
    UPDATE feeds SET seq = 50000 WHERE context_id = 'r10';
    INSERT INTO waits SELECT 'r' || i, 'c', 'r10', i, 'approval', 'a' || i % 5, 't', 'h', i,
            CASE WHEN i % 2 = 0 THEN '2026' || i END, 'Pay ' || i, CASE WHEN i % 3 = 0 THEN i END
        FROM generate_series(1000, 50000) i;
"""
SEQUENTIAL_SCANS = (
    "SELECT relname FROM pg_stat_user_tables WHERE seq_scan > 0 AND relname NOT IN ('meta', 'perdure_version')"
)


async def test_every_statement_uses_an_index(postgres_databases: Databases):
    url = postgres_databases.make()
    store = PostgresStore(f"{url}?pool_size=1")
    await store.open()
    await execute(url, ROWS, "ANALYZE", "SELECT pg_stat_reset()")
    for n in range(8):  # from the sixth on, a statement may have another plan
        await read_all(store)
        await write_all(store, n)
    await store._pool.fetch("SELECT pg_stat_force_next_flush()")
    other = await asyncpg.connect(url)
    scanned = await other.fetch(SEQUENTIAL_SCANS)
    index_scans = await other.fetchval("SELECT sum(idx_scan) FROM pg_stat_user_tables")
    await other.close()
    await store.close()
    assert [row["relname"] for row in scanned] == []
    assert index_scans > 0


async def read_all(store: PostgresStore) -> None:
    assert len(await store.find_outcomes([f"k{n}" for n in range(1, 500)])) == 499
    assert len(await store.read_nodes("h1000", until=["h500"])) == 500
    assert len(await store.read_blobs([f"b{n}" for n in range(1, 100)])) == 99
    assert await store.get_run("r1") is not None
    for agent in (None, "a1"):
        for status in (None, "running", "completed"):
            await store.list_runs(agent=agent, status=status)
            await store.list_runs(agent=agent, status=status, roots=True)
    assert await store.get_turn("r1", "t") is not None
    assert await store.find_message_turn("r1", "m1") == "t"
    assert await store.recall("n1", "key1") == b"1"
    assert len(await store.recall_all("n1", "key1234")) == 1
    assert len(await store.read_events("r10", after=100)) == 1000
    assert len(await store.read_events("r10", children=False)) == 1000
    assert len(await store.read_events("r11", children=False)) > 300
    assert len(await store.read_events("r11", after=49_900)) > 30
    assert await store.read_events("r12") == []  # it has no events in a stream that has many
    assert len(await store.list_waits(agent="a1", limit=10)) == 10
    for order in ("expiry", "amount"):
        [*_, last] = await store.list_waits(order=order, limit=10)
        assert len(await store.list_waits(order=order, after=last.get_cursor(order), limit=10)) == 10
    assert len(await store._read_streams([f"r{n}" for n in range(10, 1010)])) == 1000


async def write_all(store: PostgresStore, n: int) -> None:
    token = build_batch_token("2026", n + 1)
    for of in ("r10", "r11"):
        events = [NewEvent(LimitReached()), NewEvent(LimitReached(), f"key{n}"), NewEvent(ModelDelta(text="a"))]
        assert await store.append(EventBatch(of, events, token, advances=True))
    assert (await store.claim(f"new{n}", "me", events=EventBatch("r11", [NewEvent(LimitReached())], token))).starts == 1
    await store.commit(
        Commit(
            nodes=[Node(f"new{n}", "h50000", b'[{"hash": "%064x"}]' % n)],
            outcome=Outcome(f"new{n}", "model", b"1"),
            run=RunRow("r11", "a", "s", f"new{n}", "running"),
            turn=TurnRow("r11", "t", "running", messages=[f"new{n}"]),
            memory=[MemoryWrite("n", "k", b"%d" % (n + 1), True, b"%d" % n if n else None)],
            events=EventBatch("r11", [NewEvent(ModelCompleted(text="a"))], token),
        )
    )
