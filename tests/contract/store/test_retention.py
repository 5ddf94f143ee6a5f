"""What a collector deletes, and what it never does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.artifacts import build_artifact_namespace
from perdure.calls.reply_cache import build_reply_namespace
from perdure.client.retention import Collector, ExecutionState, GarbageReport
from perdure.errors import TranscriptCorruptedError
from perdure.ports.store import Blob, Commit, EventBatch, MemoryWrite, NewEvent, Outcome, RunRow, Store, TurnRow
from perdure.store import Chain
from perdure.store.objects import LargeBlobStore, ObjectLocation
from perdure.store.postgres import PostgresStore
from perdure.store.postgres_connection import bind_statement
from perdure.store.retention import OTHER_TABLES, RUN_TABLES, delete_nodes, delete_tree
from perdure.store.schema import TABLES
from perdure.store.sqlite import SqliteStore
from perdure.testing.store import MemoryStore
from perdure.types.events import LimitReached, ToolCompleted
from perdure.types.messages import FilePart, Message, Replaced
from perdure.types.subagents import Lineage, PathStep
from tests.contract.store.conftest import Database
from tests.support.postgres import Databases
from tests.support.wait import eventually

OLD, LATER, NOW = "2026-01-01", "2026-03-01", "2026-06-01"
AGE = timedelta(days=30)


class FakeRuns:
    """What Temporal would know: runs are over and forgotten, but for those named here."""

    def __init__(
        self, open: Iterable[str] = (), closed: dict[str, str] | None = None, names: Iterable[str] = ()
    ) -> None:
        self.open, self.closed, self.names = set(open), closed or {}, set(names)

    async def check_store(self, store: Store, now: datetime) -> None:
        pass

    async def find_state(self, id: str) -> ExecutionState:
        if id in self.open:
            return ExecutionState("open")
        if id in self.closed:
            return ExecutionState("closed", datetime.fromisoformat(self.closed[id]).replace(tzinfo=UTC))
        return ExecutionState("missing")

    async def read_references(self, since: datetime) -> AsyncGenerator[set[str]]:
        yield self.names


async def collect(
    store: Store,
    day: str = NOW,
    runs: FakeRuns | None = None,
    *,
    batch: int = 3,
    dry_run: bool = False,
    lost: bool = False,
) -> GarbageReport:
    now = datetime.fromisoformat(day).replace(tzinfo=UTC)
    collector = Collector(store, runs or FakeRuns(), now, AGE, batch, dry_run=dry_run, lost=lost)
    await collector.collect()
    return collector.build_report()


async def collect_twice(store: Store, day: str = NOW, runs: FakeRuns | None = None) -> None:
    """Runs go first; what only they referred to goes some days later."""
    await collect(store, day, runs)
    later = datetime.fromisoformat(day) + timedelta(days=4)
    await collect(store, later.date().isoformat(), runs)


def set_day(store: Any, day: str) -> None:
    """Let the store write as on that day."""
    inner = getattr(store, "_store", store)
    inner._now = lambda: f"{day}T12:00:00.000000+00:00"


def large(text: str) -> str:
    return text * (40_000 // len(text))


async def talk(
    store: Store,
    name: str,
    texts: Iterable[str],
    *,
    head: str | None = None,
    status: str = "completed",
    number: int = 0,
) -> str:
    """Write a run of one turn, an iteration for each text; return its head."""
    chain = Chain(store)
    for text in texts:
        number += 1
        node, blobs = chain.extend(head, [Message.user(text)])
        head = node.hash
        await store.commit(
            Commit(
                nodes=[node],
                blobs=blobs,
                outcome=Outcome(f"{name} {number}", "model", b"{}"),
                run=RunRow(name, "agent", "scope", head, status, number),
                turn=TurnRow(name, "turn", status, head, messages=[f"message {number}"]),
                events=EventBatch(name, [NewEvent(LimitReached(limit=number), f"key {number}")]),
            )
        )
    assert head is not None
    return head


async def read_texts(store: Store, head: str) -> list[str]:
    """The transcript, read from the store alone."""
    return [message.text for message in await Chain(store).load(head)]


async def is_gone(store: Store, name: str) -> bool:
    """Whether nothing of a run is left; part of it is a failure."""
    left = [
        await store.get_run(name),
        await store.get_turn(name, "turn"),
        await store.find_message_turn(name, "message 1"),
        (await store.find_outcomes([f"{name} 1"])).get(f"{name} 1"),
        *await store.read_events(name),
    ]
    there = [row is not None for row in left]
    assert all(there) or not any(there), "a run is deleted as a whole"
    return not any(there)


async def test_an_old_run_goes_and_some_days_later_its_transcript(store: Store):
    set_day(store, OLD)
    head = await talk(store, "run", ["one", large("two")])
    set_day(store, LATER)
    await talk(store, "young", ["three"])
    would = await collect(store, "2026-03-02", dry_run=True)
    assert (would.runs, would.nodes, would.blobs) == (1, 0, 0)
    assert not await is_gone(store, "run"), "a dry run deletes nothing"
    done = await collect(store, "2026-03-02")
    assert (done.runs, done.nodes, done.blobs) == (1, 0, 0)
    assert await is_gone(store, "run")
    assert not await is_gone(store, "young")
    assert await read_texts(store, head) == ["one", large("two")], "a call may continue from it at this moment"

    done = await collect(store, "2026-03-05")
    assert (done.runs, done.nodes, done.blobs) == (0, 2, 1)
    assert await store.find_blobs([Blob.from_content(large("two")).hash]) == set()
    assert not await is_gone(store, "young")
    assert await collect(store, "2026-03-05") == GarbageReport(dry_run=False, before=done.before)


async def test_a_dry_run_says_what_goes(store: Store):
    set_day(store, OLD)
    for n in range(4):
        await talk(store, f"run {n}", ["one", large(f"{n} "), "three"])
    await talk(store, "fork", ["four"], head=await talk(store, "base", [large("x"), "y"]))
    await collect(store)
    would = await collect(store, "2026-06-10", dry_run=True)
    done = await collect(store, "2026-06-10")
    assert (would.nodes, would.blobs, would.bytes) == (done.nodes, done.blobs, done.bytes)
    assert done.nodes == 4 * 3 - 3 + 3, "the runs share their first node"


async def test_an_open_run_and_one_without_an_end_stay(store: Store):
    set_day(store, OLD)
    heads = {name: await talk(store, name, [large(name)], status="waiting") for name in ("open", "lost", "closed")}
    heads["reopened"] = await talk(store, "reopened", ["hello"])
    runs = FakeRuns(open=["open", "reopened"], closed={"closed": "2026-01-02"})
    report = await collect(store, runs=runs)
    assert (report.runs, report.open, report.unknown) == (1, 2, 1)
    await collect_twice(store, "2026-07-01", runs)
    assert await is_gone(store, "closed")
    for name in ("open", "lost"):
        assert not await is_gone(store, name)
        assert await read_texts(store, heads[name]) == [large(name)]
    report = await collect(store, "2026-08-01", runs, lost=True)
    assert (report.runs, report.unknown) == (1, 0)
    assert await is_gone(store, "lost")


async def test_a_run_that_closed_a_short_time_ago_stays(store: Store):
    set_day(store, OLD)
    await talk(store, "run", ["one"], status="waiting")
    runs = FakeRuns(closed={"run": "2026-05-20"})
    assert (await collect(store, runs=runs)).runs == 0
    assert (await collect(store, "2026-07-01", runs)).runs == 1


async def test_a_tree_of_runs_goes_as_a_whole(store: Store):
    set_day(store, OLD)
    await talk(store, "root", ["one"])
    lineage = Lineage(root="root", agent="agent", path=(PathStep(call_id="c", agent="agent", run="root/1"),))
    await store.append(EventBatch("root/1", [NewEvent(LimitReached(limit=1))], lineage=lineage))
    await talk(store, "root/1", ["two"])
    set_day(store, "2026-05-20")
    await talk(store, "root/1", ["three"], number=1)
    assert (await collect(store)).runs == 0, "a run of the tree is young"
    for name in ("root", "root/1"):  # a message has reopened it: its row has the end of before
        assert (await collect(store, "2026-07-01", FakeRuns(open=[name]))).runs == 0
    assert len(await store.read_events("root")) == 4
    assert (await collect(store, "2026-07-01")).runs == 2
    assert await store.get_run("root/1") is None
    assert await is_gone(store, "root")
    assert await store.read_events("root/1") == []


async def test_a_tree_that_is_written_to_meanwhile_stays(store: Store):
    set_day(store, OLD)
    await talk(store, "run", ["one"])
    tree = await store.read_tree("run")
    await store.append(EventBatch("run", [NewEvent(LimitReached(limit=9))]))
    assert not await store.delete_tree(tree, OLD)
    assert not await is_gone(store, "run")
    tree = await store.read_tree("run")
    set_day(store, LATER)
    await store.commit(Commit(run=RunRow("run", "agent", "scope", None, "running", asked_at="1")))
    assert not await store.delete_tree(tree, OLD)
    assert not await is_gone(store, "run")
    assert await store.delete_tree(await store.read_tree("run"), OLD)
    assert await is_gone(store, "run")


async def test_an_id_that_is_used_again_begins_anew(store: Store):
    set_day(store, OLD)
    await talk(store, "run", ["one", "two"])
    places = [build(name) for build in (build_artifact_namespace, build_reply_namespace) for name in ("run", "run 2")]
    await store.commit(Commit(memory=[MemoryWrite(place, "key", b"1") for place in (*places, "run")]))
    await collect(store)
    left = [place for place in (*places, "run") if await store.recall(place, "key")]
    assert left == [places[1], places[3], "run"]
    set_day(store, NOW)
    await talk(store, "run", ["again"])
    assert [row.seq for row in await store.read_events("run")] == [1]
    assert not await is_gone(store, "run")


async def test_a_fork_keeps_what_it_shares(store: Store):
    set_day(store, OLD)
    base = await talk(store, "base", [large("base"), "end"])
    set_day(store, "2026-05-30")
    head = await talk(store, "fork", ["more"], head=base)
    await collect_twice(store)
    assert await is_gone(store, "base")
    assert await read_texts(store, head) == [large("base"), "end", "more"]


async def test_a_summary_keeps_what_it_replaces(store: Store):
    set_day(store, OLD)
    before = await talk(store, "run", [large("before"), "end"])
    set_day(store, "2026-05-30")
    summary = Message.user("summary").model_copy(update={"replaces": Replaced(head=before, messages=2, kept=0)})
    node, blobs = Chain(store).extend(None, [summary])
    await store.commit(
        Commit(nodes=[node], blobs=blobs, run=RunRow("run", "agent", "scope", node.hash, "completed", asked_at="2"))
    )
    await collect_twice(store)
    assert await read_texts(store, before) == [large("before"), "end"]
    await collect_twice(store, "2026-09-01")
    await collect(store, "2026-09-20")
    assert await store.find_blobs([Blob.from_content(large("before")).hash]) == set()


async def test_what_a_living_run_refers_to_outside_of_its_transcript_stays(store: Store):
    set_day(store, OLD)
    blobs = {name: Blob.from_content(name) for name in ("outcome", "result", "event", "memory", "inbox", "nothing")}
    await store.commit(Commit(blobs=list(blobs.values())))
    refs = {name: blob.ref.model_dump_json().encode() for name, blob in blobs.items()}
    event = ToolCompleted(call_id="c", name="t", content="", blob=blobs["event"].ref, status="ok")
    await store.commit(
        Commit(
            outcome=Outcome("tool", "tool", b'{"blob":%s}' % refs["outcome"]),
            run=RunRow("run", "agent", "scope", None, "running", result=b'{"blob": %s}' % refs["result"]),
            events=EventBatch("run", [NewEvent(event)]),
            memory=[MemoryWrite("files", "report", b'{"blob":%s}' % refs["memory"])],
        )
    )
    runs = FakeRuns(open=["run"], names=[blobs["inbox"].hash])
    done = await collect(store, runs=runs)
    assert (done.blobs, done.open) == (1, 1)
    names = {blob.hash: name for name, blob in blobs.items()}
    kept = {names[found] for found in await store.find_blobs(list(names))}
    assert kept == blobs.keys() - {"nothing"}

    await collect(store, "2026-09-01", FakeRuns(closed={"run": "2026-01-02"}))
    await collect(store, "2026-09-10")
    assert {names[found] for found in await store.find_blobs(list(names))} == {"memory"}


async def test_what_is_referred_to_again_is_young_again(store: Store):
    set_day(store, OLD)
    file, text = Blob.from_content(b"file"), large("text")
    head = await talk(store, "run", [text])
    set_day(store, "2026-01-20")
    await store.commit(Commit(blobs=[file]))
    await collect(store, "2026-02-05")
    assert await is_gone(store, "run")
    set_day(store, "2026-02-06")
    part = FilePart(media_type="text/plain", blob=file.ref)
    node, _ = Chain(store).extend(None, [Message(role="user", parts=(part,))])
    await store.commit(Commit(nodes=[node], run=RunRow("files", "agent", "scope", node.hash, "running")))
    again, blobs = Chain(store).extend(None, [Message.user(text)])  # the same content, and the same node
    assert again.hash == head
    await store.commit(Commit(nodes=[again], blobs=blobs))
    await collect(store, "2026-03-01", FakeRuns(open=["files"]))
    assert await read_texts(store, head) == [text]
    assert await store.find_blobs([file.hash]) == {file.hash}


async def test_what_temporal_refers_to_is_held(store: Store):
    set_day(store, OLD)
    head = await talk(store, "base", ["one", large("two")])
    scheduled = FakeRuns(names=[head, "f" * 64])
    for day in ("2026-03-01", "2026-03-10", NOW, "2026-06-10"):
        await collect(store, day, scheduled)
    assert await is_gone(store, "base")
    assert await read_texts(store, head) == ["one", large("two")]
    await collect(store, "2026-08-01")
    assert await store.find_blobs([Blob.from_content(large("two")).hash]) == set()


def test_every_table_is_deleted_with_a_run_or_says_why_not():
    assert set(RUN_TABLES) | OTHER_TABLES.keys() == TABLES.keys()
    assert not set(RUN_TABLES) & OTHER_TABLES.keys()
    assert all("context_id" in TABLES[table] for table in RUN_TABLES)


# ---
# Beside writers, and killed.


@pytest.mark.parametrize("brings_parent", [False, True])
async def test_writers_and_a_collector_race(database: Database, brings_parent: bool):
    """Each writer refers to what is old at the moment at which the collector wants to delete it."""
    writer, collector = await database.open(), await database.open()
    for attempt in range(8):
        set_day(writer, OLD)
        base, blobs = Chain(writer).extend(None, [Message.user(large(f"{attempt} "))])
        await writer.commit(Commit(nodes=[base], blobs=blobs))
        set_day(writer, NOW)
        child, _ = Chain(writer).extend(base.hash, [Message.user("more")])
        row = RunRow(f"run {attempt}", "agent", "scope", child.hash, "completed")
        brought = Commit(nodes=[base], blobs=blobs) if brings_parent else Commit()
        commit = replace(brought, nodes=[*brought.nodes, child], run=row if brings_parent else None)
        work = (collect(collector), writer.commit(commit))
        results = await asyncio.gather(*work[:: 1 if attempt % 2 else -1], return_exceptions=True)
        error = next((result for result in results if isinstance(result, BaseException)), None)
        if error is None:
            assert await read_texts(writer, child.hash) == [large(f"{attempt} "), "more"]
        else:
            assert not brings_parent, "a commit that brings its parent needs none"
            assert isinstance(error, TranscriptCorruptedError)
            assert "is missing from the store" in str(error)
            assert await writer.get_run(row.context_id) is None


COUNT_WAITING = """
    SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"""


@pytest.mark.postgres
@pytest.mark.parametrize("what", ["node", "run"])
@pytest.mark.parametrize("is_known", [True, False])
async def test_a_reference_that_is_written_while_its_holder_is_deleted_stays(
    postgres_databases: Databases, what: str, is_known: bool
):
    """The same node, or run, is written anew at the moment of its deletion, and refers to a blob."""
    url = postgres_databases.make()
    database = Database(lambda: PostgresStore(url))
    store = await database.open()
    file, other = Blob.from_content(b"file"), Blob.from_content(b"other")
    part = FilePart(media_type="text/plain", blob=file.ref)
    node, _ = Chain(store).extend(None, [Message(role="user", parts=(part,))])
    result = RunRow("run", "agent", "scope", None, "completed", result=b'{"hash": "%s"}' % file.hash.encode())
    commit = Commit(blobs=[other], nodes=[node] if what == "node" else [], run=result if what == "run" else None)
    set_day(store, OLD)
    await store.commit(Commit(blobs=[file], run=replace(result, result=None)))
    if is_known or what == "node":
        await store.commit(commit)
    set_day(store, NOW)
    tree = await store.read_tree("run")
    deletion = delete_tree(tree, OLD) if what == "run" else delete_nodes([node.hash], LATER)

    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    writing: asyncio.Task[Any] | None = None
    rows: list[Any] | None = None
    try:
        while True:
            query = deletion.send(rows)
            sql, values = bind_statement(query.statement, query.values)
            rows = [tuple(row) for row in await connection.fetch(sql, *values)]
            if writing is None and sql.startswith(("DELETE FROM nodes", "DELETE FROM runs")):
                writing = asyncio.create_task(store.commit(commit))
                await eventually(lambda: connection.fetchval(COUNT_WAITING))
    except StopIteration:
        await transaction.commit()
    await connection.close()
    assert writing is not None
    await writing
    assert await store.read_holders([file.hash]) == {file.hash: {node.hash if what == "node" else "run"}}
    await store.close()


COLLECT = """
import asyncio, sys
from perdure.client.retention import Collector
from perdure.store import open_store
from tests.contract.store.test_retention import collect

write = Collector._write

async def report(self, statement):
    result = await write(self, statement)
    print("written", flush=True)
    return result

Collector._write = report

async def main(url):
    store = open_store(url)
    await store.open()
    for day in ("2026-06-01", "2026-06-10"):
        await collect(store, day, batch=1)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("writes", [1, 9, 25])
async def test_a_collector_that_is_killed_leaves_whole_runs(database: Database, writes: int):
    url = database.other_process()
    store = await database.open()
    set_day(store, OLD)
    heads = {}
    for n in range(12):
        heads[f"run {n}"] = await talk(store, f"run {n}", [large(f"{n} "), "end"])
    set_day(store, NOW)
    for n in range(0, 12, 3):
        heads[f"fork {n}"] = await talk(store, f"fork {n}", ["fork"], head=heads[f"run {n}"])
    with subprocess.Popen([sys.executable, "-c", COLLECT, url], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(writes)] == ["written\n"] * writes
        process.kill()
    for name, head in heads.items():
        if not await is_gone(store, name):
            assert (await read_texts(store, head))[-1] in ("end", "fork")
    subprocess.run([sys.executable, "-c", COLLECT, url], check=True, capture_output=True)
    for n in range(12):
        assert await is_gone(store, f"run {n}")
        assert await store.find_blobs([Blob.from_content(large(f"{n} ")).hash]) == (
            set() if n % 3 else {Blob.from_content(large(f"{n} ")).hash}
        )
    for n in range(0, 12, 3):
        assert await read_texts(store, heads[f"fork {n}"]) == [large(f"{n} "), "end", "fork"]


# ---
# Objects.


@pytest.fixture
async def large_store(tmp_path: Path) -> AsyncGenerator[LargeBlobStore]:
    """All blobs are objects in ``tmp_path/objects``."""
    store = LargeBlobStore(
        SqliteStore(f"sqlite:///{tmp_path}/store.db"), ObjectLocation(f"file://{tmp_path}/objects"), 0
    )
    await store.open()
    set_day(store, OLD)
    yield store
    await store.close()


FAR = "2031-01-01"
"""Long after the objects were written, whose times are those of the file system."""
OBJECT = Blob.from_content("an object")


def list_objects(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "objects").rglob("*") if path.is_file() and len(path.name) == 64}


async def test_an_object_goes_with_its_row(large_store: Any, tmp_path: Path):
    kept = Blob.from_content("kept")
    await large_store.commit(
        Commit(blobs=[OBJECT, kept], memory=[MemoryWrite("m", "k", b'{"hash":"%s"}' % kept.hash.encode())])
    )
    would = await collect(large_store, FAR, dry_run=True)
    assert list_objects(tmp_path) == {OBJECT.hash, kept.hash}
    done = await collect(large_store, FAR)
    assert (done.blobs, done.objects, done.object_bytes) == (1, 1, 9)
    assert (would.blobs, would.objects, would.object_bytes) == (1, 1, 9)
    assert list_objects(tmp_path) == {OBJECT.hash, kept.hash}, "the copy"
    assert (await collect(large_store, FAR)).objects == 0
    assert list_objects(tmp_path) == {kept.hash}
    assert await large_store.read_blobs([kept.hash]) == {kept.hash: b"kept"}


async def test_an_object_that_gets_a_row_while_it_is_deleted_comes_back(
    large_store: Any, monkeypatch: pytest.MonkeyPatch
):
    await large_store.commit(Commit(blobs=[OBJECT]))
    delete = ObjectLocation.delete

    async def commit_and_delete(location: ObjectLocation, name: str) -> None:
        if not name.startswith("deleted/"):
            set_day(large_store, FAR)
            await large_store.commit(Commit(blobs=[OBJECT]))  # the object is young for it, and not uploaded again
        await delete(location, name)

    monkeypatch.setattr(ObjectLocation, "delete", commit_and_delete)
    await collect(large_store, FAR)
    assert await large_store.read_blobs([OBJECT.hash]) == {OBJECT.hash: OBJECT.body}


async def test_an_object_whose_row_is_committed_after_its_deletion_comes_back(
    large_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    await large_store.commit(Commit(blobs=[OBJECT]))
    commit = SqliteStore.commit

    async def collect_and_commit(store: SqliteStore, written: Commit) -> bytes | None:
        monkeypatch.undo()
        await collect(large_store, FAR)
        set_day(large_store, FAR)
        return await commit(store, written)

    monkeypatch.setattr(SqliteStore, "commit", collect_and_commit)
    await large_store.commit(Commit(blobs=[OBJECT]))  # it has seen the object, and a collector deletes it
    assert await large_store.read_blobs([OBJECT.hash]) == {OBJECT.hash: OBJECT.body}
    await collect(large_store, FAR)
    assert await large_store.read_blobs([OBJECT.hash]) == {OBJECT.hash: OBJECT.body}


async def test_a_copy_of_a_deleted_object_stays_for_two_days(large_store: Any, tmp_path: Path):
    await large_store.commit(Commit(blobs=[OBJECT]))
    await collect(large_store, FAR)
    today = datetime.now(UTC).date().isoformat()
    await collect(large_store, today)
    assert list_objects(tmp_path) == {OBJECT.hash}
    await collect(large_store, FAR)
    assert list_objects(tmp_path) == set()


async def test_a_collector_that_died_while_it_deleted_an_object_is_finished_by_the_next(
    large_store: Any, monkeypatch: pytest.MonkeyPatch
):
    await large_store.commit(Commit(blobs=[OBJECT]))
    pointer = (await large_store._store.read_blobs([OBJECT.hash]))[OBJECT.hash]

    async def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ObjectLocation, "delete", die)
        with pytest.raises(KeyboardInterrupt):
            await large_store._delete_unused(OBJECT.hash)
    set_day(large_store, FAR)
    await large_store._store.commit(Commit(blobs=[Blob(OBJECT.hash, pointer)]))  # a writer that had uploaded it before
    await collect(large_store, FAR)
    assert await large_store.read_blobs([OBJECT.hash]) == {OBJECT.hash: OBJECT.body}


# ---
# Any order of writes and collections.


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("talk"), st.integers(0, 3), st.integers(0, 2)),
        st.tuples(st.just("fork"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("close"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 50), st.just(0)),
        st.tuples(st.just("collect"), st.integers(1, 5), st.just(0)),
    ),
    max_size=25,
)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@settings(deadline=None)
@given(actions=ACTIONS)
async def test_all_that_is_reachable_stays_readable(kind: str, actions: list[tuple[str, int, int]]):
    with tempfile.TemporaryDirectory() as folder:
        store: Store = MemoryStore() if kind == "memory" else SqliteStore(f"sqlite:///{folder}/store.db")
        await store.open()
        day, runs = datetime(2026, 1, 1, tzinfo=UTC), FakeRuns()
        expected: dict[str, tuple[str, list[str], int]] = {}
        for action, one, two in actions:
            set_day(store, day.date().isoformat())
            name = f"run {one}"
            if action in ("talk", "fork"):
                head, texts, number = expected.get(name, (None, [], 0))
                if action == "fork" and f"run {two}" in expected:
                    head, texts, _ = expected[f"run {two}"]
                text = large(f"text {two} ") if two else "short"
                number += 1
                head = await talk(store, name, [text], head=head, status="running", number=number)
                expected[name] = head, [*texts, text], number
                runs.open.add(name)
            elif action == "close" and name in expected:
                head, _, number = expected[name]
                ended = RunRow(name, "agent", "scope", head, "completed", number)
                await store.commit(Commit(run=ended))
                runs.open.discard(name)
            elif action == "wait":
                day += timedelta(days=one)
            elif action == "collect":
                await collect(store, day.date().isoformat(), runs, batch=one)
                for name in list(expected):
                    if await store.get_run(name) is None:
                        assert name not in runs.open
                        del expected[name]
                for head, texts, _ in expected.values():
                    assert await read_texts(store, head) == texts
        # At the end nothing is open, and all of it goes.
        for name in runs.open:
            head, _, number = expected[name]
            await store.commit(Commit(run=RunRow(name, "agent", "scope", head, "completed", number)))
        for days in (100, 200):
            await collect(store, (day + timedelta(days=days)).date().isoformat())
        assert await store.list_runs() == []
        assert await store.read_old_nodes("9999-01-01", ("", ""), 10) == []
        assert await store.read_old_blobs("9999-01-01", ("", ""), 10) == []
        await store.close()
