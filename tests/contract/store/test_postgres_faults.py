"""What only a PostgreSQL server can do to a store: refuse it, cut its connections, fail over, lose answers."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import signal
import socket
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from perdure.errors import MemoryChangedError, StoreError, StoreMismatchError, StoreVersionError
from perdure.ports.store import (
    Blob,
    Claim,
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
from perdure.store import postgres_connection, postgres_notify
from perdure.store.postgres import PostgresStore
from perdure.store.postgres_notify import EventNotifications
from perdure.types.events import LimitReached, ModelCompleted, ModelDelta, ToolCompleted, ToolStarted
from tests.support.cut_proxy import CutProxy, run_cut_proxy
from tests.support.postgres import Databases, PostgresServer, build_url, execute, make_folder, run_server
from tests.support.wait import eventually

pytestmark = pytest.mark.postgres

BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
def url(postgres_databases: Databases) -> str:
    return postgres_databases.make()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server of this module's own, whose data survive a stop."""
    with run_server({"fsync": "on"}) as server:
        yield server


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def refused(url: str, says: str, kind: type[StoreError] = StoreError) -> StoreError:
    with pytest.raises(kind, match=says) as caught:
        await PostgresStore(url).open()
    assert caught.value.hint
    return caught.value


async def end_connections(url: str) -> None:
    """As an administrator does; the connections of the store, and no others."""
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    await execute(url, f"{others} AND application_name LIKE 'perdure %'")


def outcome(key: str, body: bytes = b"1") -> Commit:
    return Commit(outcome=Outcome(key, "tool", body))


def batch(*events: NewEvent, at: str = "", of: str = "c") -> EventBatch:
    return EventBatch(of, events or [NewEvent(LimitReached())], at, advances=True)


def with_login(url: str, login: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{login}@{parts.netloc.rpartition('@')[2]}").geturl()


# --- what refuses a store ----------------------------------------------------------------------------------------


async def test_nobody_listens_there():
    error = await refused("postgresql://ana:secret@127.0.0.1:1/perdure", "cannot be reached")
    assert "ana@127.0.0.1:1/perdure" in error.message
    assert "secret" not in str(error)
    await refused("postgresql://ana:secret@nowhere.invalid/perdure", "cannot be reached")


async def test_a_wrong_password_and_a_right_one(server: PostgresServer):
    await execute(server.url, "CREATE ROLE with_password LOGIN SUPERUSER PASSWORD 'p@ss/word'")
    error = await refused(with_login(server.url, "with_password:wr0ng"), "refuses the user or the password")
    assert "wr0ng" not in str(error)
    await execute(server.url, "CREATE DATABASE passwords")
    async with opened(build_url(with_login(server.url, "with_password:p%40ss%2Fword"), "passwords")) as store:
        assert await store.commit(outcome("a")) == b"1"


async def test_a_database_that_is_not_there(url: str):
    await refused(build_url(url, "nowhere"), "no database for the store .*nowhere")


async def test_a_user_without_privileges(url: str):
    role = f"plain_{url.rpartition('_')[2]}"
    await execute(url, f"CREATE ROLE {role} LOGIN")
    plain = with_login(url, role)
    await refused(plain, "does not allow this to its user")  # it may not create tables
    async with opened(url) as store:
        await store.commit(outcome("a"))
    await refused(plain, "does not allow this to its user")  # nor read them
    await execute(url, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    async with opened(plain) as reader:
        assert await reader.find_outcomes(["a"]) == {"a": b"1"}
        with pytest.raises(StoreError, match="does not allow this to its user"):
            await reader.commit(outcome("b"))
        await execute(url, f"GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
        assert await reader.commit(outcome("b")) == b"1"
    await execute(url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


async def test_a_newer_and_an_older_schema(url: str):
    async with opened(url):
        pass
    await execute(url, "UPDATE perdure_version SET version_num = '9999'", "UPDATE meta SET usable_from = '9999'")
    error = await refused(url, "schema 9999, this perdure knows up to", StoreVersionError)
    assert not error.retryable
    await execute(url, "UPDATE perdure_version SET version_num = '0000'", "UPDATE meta SET usable_from = '0000'")
    await refused(url, "cannot be upgraded", StoreVersionError)


async def test_the_tables_of_another_program(url: str):
    await execute(url, "CREATE TABLE runs (distance integer)")
    await refused(url, r"tables of another program \(tables runs\)")
    await execute(url, "DROP TABLE runs", "CREATE TABLE shoes (size integer)")
    async with opened(url) as store:  # other tables do no harm
        assert await store.commit(outcome("a")) == b"1"


async def test_processes_that_create_it_at_once_make_one_store(url: str):
    stores = [PostgresStore(url) for _ in range(8)]
    await asyncio.gather(*[store.open() for store in stores])
    assert len({store.store_id for store in stores}) == 1
    await asyncio.gather(*[store.close() for store in stores])


async def test_a_reader_makes_no_store_and_sees_the_one_that_another_makes(url: str):
    reader = PostgresStore(url)
    await reader.open(create=False)
    assert reader.store_id == ""
    assert (await reader.get_run("c"), await reader.read_events("c")) == (None, [])
    with pytest.raises(StoreError, match="there is no store at"):
        await reader.commit(outcome("a"))
    async with opened(url) as store:
        await store.commit(outcome("a"))
        assert await reader.find_outcomes(["a"]) == {"a": b"1"}
        assert reader.store_id == store.store_id
    await reader.close()


# --- what happens to an open store -------------------------------------------------------------------------------


async def test_another_store_in_its_place_is_refused(url: str):
    async with opened(url) as store:
        await execute(url, "UPDATE meta SET store_id = 'another', created_at = store_id")
        await end_connections(url)
        with pytest.raises(StoreMismatchError, match="another"):
            await store.commit(outcome("a"))
        await execute(url, "UPDATE meta SET store_id = created_at")
        assert await store.commit(outcome("a")) == b"1"


async def test_a_dropped_table(url: str):
    async with opened(url) as store:
        await store.append(batch())
        await execute(url, "ALTER TABLE events RENAME TO gone")
        for work in (store.append(batch()), store.read_events("c")):
            with pytest.raises(StoreError, match=r"not laid out as a perdure store \(42P01") as caught:
                await work
            assert "restore it from a backup" in (caught.value.hint or "")
        await execute(url, "ALTER TABLE gone RENAME TO events")
        await store.append(batch())
        assert [row.seq for row in await store.read_events("c")] == [1, 2]


async def test_deltas_that_were_removed_by_hand(url: str):
    async with opened(url) as store:
        await store.append(batch(NewEvent(ModelDelta(text="a")), at=build_batch_token("2026", 1)))
        await execute(url, "DELETE FROM events")
        assert await store.append(batch(at=build_batch_token("2026", 2)))
        assert [(row.seq, row.type) for row in await store.read_events("c")] == [(2, "limit")]


async def test_a_store_that_can_only_be_read(url: str):
    name = url.rpartition("/")[2]
    async with opened(url) as store:
        await store.commit(outcome("a"))
        await execute(url, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        await end_connections(url)
        for work in (store.commit(outcome("b")), store.claim("c", "me"), store.append(batch())):
            with pytest.raises(StoreError, match="can only be read"):
                await work
        assert await store.find_outcomes(["a", "b"]) == {"a": b"1"}
        await execute(url, "SET default_transaction_read_only = off", f'ALTER DATABASE "{name}" RESET ALL')
        assert await store.commit(outcome("b")) == b"1"


@pytest.mark.parametrize(
    ("setting", "says"), [("statement_timeout", "cancelled a statement"), ("lock_timeout", "locks rows")]
)
async def test_a_lock_that_is_held(url: str, setting: str, says: str):
    async with opened(url) as store:
        await store.append(batch())
        await execute(url, f"ALTER DATABASE \"{url.rpartition('/')[2]}\" SET {setting} = '100ms'")
        await end_connections(url)
        other = await asyncpg.connect(url)
        async with other.transaction():
            await other.execute("SELECT FROM feeds FOR UPDATE")
            with pytest.raises(StoreError, match=says):
                await store.append(batch())
            assert await store.commit(outcome("of nobody's feed")) == b"1"
        await other.close()
        assert await store.append(batch())
        assert [row.seq for row in await store.read_events("c")] == [1, 2]


async def test_another_isolation_is_refused(url: str):
    """A writer that has waited for a lock would not see what was committed meanwhile."""
    async with opened(url):
        pass
    await execute(
        url, f"ALTER DATABASE \"{url.rpartition('/')[2]}\" SET default_transaction_isolation = 'serializable'"
    )
    store = PostgresStore(url)
    with pytest.raises(StoreError, match="needs 'read committed'"):
        await store.open()


async def test_those_who_wait_for_a_connection_are_told_that_the_store_is_closed(url: str):
    async with opened(f"{url}?pool_size=1") as store:
        other = await asyncpg.connect(url)
        async with other.transaction():
            await other.execute("LOCK TABLE runs")
            reads = [asyncio.create_task(store.get_run("c")) for _ in range(4)]
            await eventually(lambda: other.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))
            closing = asyncio.create_task(store.close())
            ended = await asyncio.gather(*reads[1:], return_exceptions=True)
            assert [getattr(error, "message", error) for error in ended] == [f"the store {store.place} is not open"] * 3
        await asyncio.gather(closing, reads[0], return_exceptions=True)
        await other.close()


async def test_a_server_that_does_not_answer(url: str):
    async with opened(f"{url}?command_timeout=1") as store:
        await store.append(batch())
        other = await asyncpg.connect(url)
        async with other.transaction():
            await other.execute("SELECT FROM feeds FOR UPDATE")
            with pytest.raises(StoreError, match="did not answer in time"):
                await store.append(again := batch())
        await other.close()
        assert await store.append(again)  # whether the first was written or not, there is one
        assert [row.seq for row in await store.read_events("c")] == [1, 2]


async def test_connections_that_end_are_made_anew(url: str):
    async with opened(url) as store:
        for n in range(5):
            await asyncio.gather(*[store.claim(f"{n}-{i}", "me") for i in range(10)])
            await end_connections(url)
        assert await store.commit(outcome("a")) == b"1"
        waiting = asyncio.ensure_future(store.wait_for_event("c", 0, 60))
        await asyncio.sleep(0)
        await end_connections(url)
        async with opened(url) as other:
            await other.append(batch())
        assert await waiting == 1


async def test_more_calls_than_connections(url: str):
    connections = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    async with opened(f"{url}?pool_size=2") as store:
        for _ in range(3):
            works = [asyncio.ensure_future(store.commit(outcome(f"k{n}"))) for n in range(40)]
            works += [asyncio.ensure_future(store.find_outcomes(["k0"])) for _ in range(40)]
            await asyncio.sleep(0)
            for work in works[::3]:  # of those that wait, and those that run
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
        assert len(await store.find_outcomes([f"k{n}" for n in range(40)])) == 40
        other = await asyncpg.connect(url)
        assert await other.fetchval(connections) <= 3
        await other.close()


async def test_those_who_wait_for_a_connection_get_it_in_their_order(url: str):
    async with opened(f"{url}?pool_size=1") as store:
        waiting = [asyncio.ensure_future(store.get_run("c")) for _ in range(2)]
        reads = 0
        while not all(read.done() for read in waiting) and reads < 1000:  # a caller that asks again at once
            await store.find_outcomes(["a"])
            reads += 1
        assert reads < 10


async def test_the_server_ends_statements_that_are_waited_for_no_longer(url: str):
    """They would pile up there as long as the lock is held, each in a connection of its own."""
    async with opened(url):
        pass  # making the schema may take longer than a read may
    async with opened(f"{url}?command_timeout=3&pool_size=2") as store:
        await store.append(batch())
        # Two: a transaction sees the connections that there were at its first look.
        other, watcher = await asyncpg.connect(url), await asyncpg.connect(url)
        async with other.transaction():
            await other.execute("LOCK TABLE feeds")
            with pytest.raises(StoreError, match="did not answer in time"):
                await store.append(batch())
            reading = asyncio.create_task(store.get_run("c"))

            async def is_blocked() -> bool:
                return await watcher.fetchval(BLOCKED) == 1

            await eventually(is_blocked)
            reading.cancel()

            async def is_ended() -> bool:
                return await watcher.fetchval(BLOCKED) == 0

            await eventually(is_ended)
        await other.close()
        await watcher.close()
        assert [row.seq for row in await store.read_events("c")] == [1]


async def test_a_cancelled_commit_is_written(url: str):
    async with opened(url) as store:
        commits = [asyncio.ensure_future(store.commit(outcome(f"k{i}"))) for i in range(30)]
        await asyncio.sleep(0)
        for commit in commits:
            commit.cancel()
        await asyncio.gather(*commits, return_exceptions=True)
        keys = [f"k{i}" for i in range(30)]

        async def are_written() -> bool:
            return len(await store.find_outcomes(keys)) == 30

        await eventually(are_written)


async def test_a_cancelled_batch_that_is_appended_again_is_written_once(url: str):
    async with opened(url) as store:
        for _ in range(10):
            written = batch()
            appending = asyncio.ensure_future(store.append(written))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            appending.cancel()
            await asyncio.gather(appending, return_exceptions=True)
            assert await store.append(written)
        assert [row.seq for row in await store.read_events("c")] == list(range(1, 11))


async def test_close_waits_for_writes_and_open_may_follow(url: str):
    async with opened(url) as store:
        commits = [asyncio.ensure_future(store.commit(outcome(f"k{i}"))) for i in range(30)]
        await asyncio.sleep(0)
        await store.close()
        assert await asyncio.gather(*commits) == [b"1"] * 30
        with pytest.raises(StoreError, match="is not open"):
            await store.commit(outcome("a"))
        await store.open()
        assert len(await store.find_outcomes([f"k{i}" for i in range(30)])) == 30


async def test_close_wakes_those_who_wait(url: str):
    async with opened(url) as store:
        waiting = asyncio.ensure_future(store.wait_for_event("c", 0, 60))
        await store.append(batch(of="other"))
        await store.close()
        with pytest.raises(StoreError, match="is not open"):
            await waiting


async def test_several_event_loops_share_it(url: str):
    async with opened(url) as store:

        def elsewhere() -> bytes | None:
            return asyncio.run(store.commit(outcome("elsewhere")))

        answers = await asyncio.gather(asyncio.to_thread(elsewhere), store.commit(outcome("here")))
        assert answers == [b"1", b"1"]


async def test_a_forked_process_has_connections_of_its_own(url: str):
    async with opened(url) as store:
        await store.commit(outcome("parent"))

        def use() -> None:
            assert asyncio.run(store.commit(outcome("child"))) == b"1"
            asyncio.run(store.close())

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # what Python says of threads and fork
            child = multiprocessing.get_context("fork").Process(target=use)
            child.start()
        await asyncio.to_thread(child.join, 60)
        child.kill()
        assert child.exitcode == 0
        assert await store.find_outcomes(["parent", "child"]) == {"parent": b"1", "child": b"1"}


def test_a_program_may_run_one_event_loop_after_the_other(url: str):
    store = PostgresStore(url)
    asyncio.run(store.open())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the connections of an event loop that has ended
        assert asyncio.run(store.commit(outcome("a"))) == b"1"
        assert asyncio.run(store.find_outcomes(["a"])) == {"a": b"1"}
        del store
        gc.collect()


async def test_a_pooling_proxy_is_given_no_named_statements(url: str):
    async with opened(f"{url}?pooler=transaction&pool_size=1") as store:
        await store.commit(outcome("a"))
        await store.append(batch())
        assert [row.seq for row in await store.read_events("c")] == [1]
        rows = await store._pool.fetch("SELECT name FROM pg_prepared_statements WHERE name <> ''")
        assert rows == []


# --- texts that PostgreSQL does not take -------------------------------------------------------------------------


async def test_nul_in_every_text(url: str):
    name = "a\0b\1c"
    async with opened(url) as store:
        turn = TurnRow(name, name, "running", messages=[name, "m" * 5000])
        row = RunRow(name, name, name, None, "running")
        events = [
            NewEvent(LimitReached(), "first"),
            NewEvent(LimitReached(task_id=name), name),
            NewEvent(LimitReached(), "k" * 5000),
        ]
        commit = Commit(outcome=Outcome(name, "model", b"1"), run=row, turn=turn, events=batch(*events, of=name))
        assert await store.commit(commit) == b"1"
        await store.append(batch(*events, NewEvent(ModelDelta(text=name)), of=name))
        kept = await store.get_run(name)
        assert kept is not None
        assert (kept.context_id, kept.agent) == (name, name)
        assert [run.context_id for run in await store.list_runs(agent=name)] == [name]
        assert await store.get_turn(name, name) is not None
        assert [await store.find_message_turn(name, message) for message in turn.messages] == [name, name]
        assert await store.find_outcomes([name]) == {name: b"1"}
        rows = await store.read_events(name)
        assert [(event.seq, event.task_id) for event in rows] == [(1, None), (2, name), (3, None), (4, None)]


async def test_an_id_that_is_no_text_fails_no_other_follower(url: str):
    async with opened(url) as store:
        hostile = asyncio.ensure_future(store.wait_for_event("\ud800", 0, 60))
        waiting = asyncio.ensure_future(store.wait_for_event("c", 0, 60))
        with pytest.raises(StoreError, match="cannot take a value"):
            await hostile
        await store.append(batch())
        assert await waiting == 1


async def test_a_place_beyond_all_numbers(url: str):
    async with opened(url) as store:
        await store.append(batch())
        assert await store.read_events("c", after=10**30) == []


# --- answers that are lost ---------------------------------------------------------------------------------------


@pytest.fixture
async def proxy(url: str) -> AsyncIterator[CutProxy]:
    async with run_cut_proxy(urlsplit(url).port or 5432) as proxy:
        yield proxy


@asynccontextmanager
async def opened_behind(proxy: CutProxy, url: str) -> AsyncIterator[PostgresStore]:
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    netloc = f"{login}@127.0.0.1:{proxy.port}"
    # One connection, so that the answer that is cut is that of the write; notifications take another way.
    behind = parts._replace(netloc=netloc, query=f"pool_size=1&listen=127.0.0.1:{parts.port}").geturl()
    async with opened(behind) as store:
        await store.append(batch(of="warm"))
        await store.claim("warm", "me")
        await store.commit(outcome("warm"))
        yield store


async def test_a_commit_whose_answer_is_lost_is_applied_once(proxy: CutProxy, url: str):
    async with opened_behind(proxy, url) as store:
        await store.commit(Commit(memory=[MemoryWrite("n", "k", b"0")]))
        proxy.cuts = 1
        commit = Commit(
            nodes=[Node("h", None, b"[]")],
            outcome=Outcome("k", "model", b"mine"),
            run=RunRow("c", "a", "s", "h", "running"),
            turn=TurnRow("c", "t", "running", messages=["m"]),
            memory=[MemoryWrite("n", "k", b"1", True, b"0")],
            events=batch(NewEvent(ModelCompleted(text="whole"))),
        )
        assert await store.commit(commit) == b"mine"
        assert proxy.cuts == 0
        assert await store.commit(commit) == b"mine"
        assert await store.recall("n", "k") == b"1"
        assert [row.type for row in await store.read_events("c")] == ["model.completed"]


async def test_a_claim_whose_answer_is_lost_is_one_start(proxy: CutProxy, url: str):
    async with opened_behind(proxy, url) as store:
        proxy.cuts = 1
        started = batch(NewEvent(ToolStarted(call_id="1", name="f")))
        assert await store.claim("k", "me", events=started) == Claim("new", starts=1)
        proxy.cuts = 1
        assert await store.claim("k", "you", again=True) == Claim("new", starts=2)
        assert await store.claim("k", "me") == Claim("begun", starts=2, begun_by="you")
        assert [row.type for row in await store.read_events("c")] == ["tool.started"]


@pytest.mark.parametrize("cuts", [1, 2, 3])
async def test_a_batch_whose_answer_is_lost_is_written_once(proxy: CutProxy, url: str, cuts: int):
    async with opened_behind(proxy, url) as store:
        written = batch(NewEvent(ModelDelta(text="a")), NewEvent(LimitReached()), at=build_batch_token("2026", 1))
        proxy.cuts = cuts
        while True:
            with suppress(StoreError):  # then the caller appends the same batch again
                assert await store.append(written)
                break
        assert proxy.cuts == 0
        await store.append(batch(NewEvent(ModelCompleted(text="a")), at=build_batch_token("2026", 1)))
        rows = await store.read_events("c")
        assert [(row.seq, row.type) for row in rows] == [(2, "limit"), (3, "model.completed")]
        assert rows[1].spans == ((1, 1),)
        # The same events in another batch are others.
        assert await store.append(batch(NewEvent(LimitReached())))
        assert len(await store.read_events("c")) == 3


async def test_a_batch_whose_answer_is_lost_is_known_beside_those_of_many_replies(proxy: CutProxy, url: str):
    """A worker that streams more replies than are remembered wrote some of their deltas twice."""
    async with opened_behind(proxy, url) as store:
        written = batch(NewEvent(ModelDelta(text="a")), at=build_batch_token("2026", 1))
        proxy.cuts = 2
        with pytest.raises(StoreError):
            await store.append(written)
        others = [asyncio.ensure_future(store.append(batch(of=f"c{n}"))) for n in range(200)]
        await asyncio.sleep(0)
        for other in others:  # their answers, too, come to nobody
            other.cancel()
        await asyncio.wait(others)
        assert await store.append(written)
        assert [row.type for row in await store.read_events("c")] == ["model.delta"]


async def test_a_change_that_another_has_made_is_no_lost_answer(proxy: CutProxy, url: str):
    async with opened_behind(proxy, url) as store:
        await store.commit(Commit(memory=[MemoryWrite("n", "k", b"0")]))
        with pytest.raises(MemoryChangedError, match="memory 'n', key 'k'"):
            await store.commit(Commit(memory=[MemoryWrite("n", "k", b"1", True, b"other")]))


# --- notifications that are lost ---------------------------------------------------------------------------------


async def test_what_nobody_notified_of_is_seen_all_the_same(url: str, monkeypatch: pytest.MonkeyPatch):
    """The writer died between its commit and its notification."""
    async with opened(url) as follower, opened(url) as writer:
        waiting = asyncio.ensure_future(follower.wait_for_event("c", 0, 60))
        await asyncio.sleep(0)
        monkeypatch.setattr(EventNotifications, "notify_write", lambda *_: None)
        await writer.append(batch())
        assert await waiting == 1


async def test_a_server_for_notifications_that_does_not_answer(url: str):
    """As behind a firewall that drops packets: events are seen by the reads that catch up."""

    async def read_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(read_only, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        async with opened(f"{url}?listen=127.0.0.1:{port}&connect_timeout=3600") as follower, opened(url) as writer:
            for n in range(2):
                assert await follower.wait_for_event("c", n, 0) == 0
                waiting = asyncio.ensure_future(follower.wait_for_event("c", n, 60))
                await writer.append(batch())
                assert await waiting == n + 1


async def test_two_stores_of_one_database(url: str):
    """By their schemas, which their users' settings name."""
    number = url.rpartition("_")[2]
    roles = [f"one_{number}", f"two_{number}"]
    for role in roles:
        await execute(
            url,
            f"CREATE ROLE {role} LOGIN",
            f"CREATE SCHEMA {role} AUTHORIZATION {role}",
            f"ALTER ROLE {role} SET search_path = {role}",
        )
    one, two = [with_login(url, role) for role in roles]
    async with opened(one) as first, opened(two) as second:
        assert first.store_id != second.store_id
        waiting = asyncio.ensure_future(second.wait_for_event("c", 0, 60))
        for n in range(1, 4):
            await first.append(batch())
            assert await first.wait_for_event("c", n - 1, 0) == n
        assert not await second.wait_for_event("c", 0, 0)
        await second.append(batch())
        assert await waiting == 1
    for role in roles:
        await execute(url, f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


# --- the server stops --------------------------------------------------------------------------------------------


async def keep_committing(store: PostgresStore, name: str, ledger: dict[str, bytes], stopped: asyncio.Event) -> None:
    """Commit one outcome after the other, each until it is recorded, and note what the store answered."""
    n = 0
    while not stopped.is_set():
        key = f"{name}-{n}"
        written = EventBatch(name, [NewEvent(LimitReached(limit=n))])
        commit = Commit(
            outcome=Outcome(key, "tool", key.encode()),
            run=RunRow(name, "a", "s", None, "running", n + 1),
            memory=[MemoryWrite(name, "count", b"%d" % (n + 1), True, b"%d" % n if n else None)],
            events=written,
        )
        while True:
            try:
                answer = await store.commit(commit)
                break
            except MemoryChangedError:
                raise  # it was written twice
            except StoreError:
                await asyncio.sleep(0.01)
        assert answer == key.encode()
        ledger[key] = answer
        n += 1


async def verify_ledger(store: PostgresStore, names: list[str], ledger: dict[str, bytes]) -> None:
    for name in names:
        count = sum(key.startswith(f"{name}-") for key in ledger)
        keys = [f"{name}-{n}" for n in range(count + 1)]
        assert await store.find_outcomes(keys) == {key: key.encode() for key in keys[:-1]}
        assert await store.recall(name, "count") == b"%d" % count
        rows = await store.read_events(name, limit=100_000)
        assert [row.seq for row in rows] == list(range(1, count + 1))


async def test_an_immediate_stop_in_the_middle_of_commits(server: PostgresServer):
    await execute(server.url, "CREATE DATABASE stops")
    ledger: dict[str, bytes] = {}
    names, stopped = [f"c{n}" for n in range(6)], asyncio.Event()
    async with opened(build_url(server.url, "stops")) as one, opened(build_url(server.url, "stops")) as other:
        writers = [
            asyncio.create_task(keep_committing((one, other)[n % 2], name, ledger, stopped))
            for n, name in enumerate(names)
        ]
        for how in (signal.SIGQUIT, signal.SIGINT, signal.SIGQUIT):
            reached = len(ledger) + 60
            await eventually(lambda count=reached: len(ledger) >= count)
            await asyncio.to_thread(server.stop, how)
            await asyncio.to_thread(server.start)
        reached = len(ledger) + 60
        await eventually(lambda: len(ledger) >= reached)
        stopped.set()
        await asyncio.gather(*writers)
        await verify_ledger(one, names, ledger)


DATABASE_NAME = "database.test"


def resolve_to(monkeypatch: pytest.MonkeyPatch, port_of_name: Callable[[], int]) -> None:
    """``DATABASE_NAME`` resolves to this machine, at the port that holds then; other names as before."""
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *args: Any, **options: Any) -> list[Any]:
        is_name = host in (DATABASE_NAME, DATABASE_NAME.encode())
        return resolve(*(("127.0.0.1", port_of_name()) if is_name else (host, port)), *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


async def follow(store: PostgresStore, context_id: str, last: asyncio.Future[int]) -> list[int]:
    """The numbers of the events up to the last one, whose number is known later."""
    seen: list[int] = []
    while not last.done() or len(seen) < last.result():
        with suppress(StoreError):  # the servers change
            if await store.wait_for_event(context_id, len(seen), 1):
                seen += [row.seq for row in await store.read_events(context_id, after=len(seen))]
    return seen


@pytest.mark.parametrize("by", ["two hosts", "one name", "one name, and the old server answers"])
async def test_a_standby_takes_over(by: str, monkeypatch: pytest.MonkeyPatch):
    """Either the URL names both servers, or one name, whose address changes from the primary's to the standby's. The
    old server has stopped, or goes on with all its connections and takes no writes."""
    for module in (postgres_connection, postgres_notify):
        monkeypatch.setattr(module, "LIFETIME_SECONDS", 1)
    ledger: dict[str, bytes] = {}
    names, stopped = ["c0", "c1"], asyncio.Event()
    with run_server({"fsync": "on"}) as server, make_folder() as folder:
        await execute(server.url, "CREATE DATABASE failover")
        async with opened(build_url(server.url, "failover")):
            pass
        standby = await asyncio.to_thread(server.make_standby, folder)
        await asyncio.to_thread(standby.start)
        named = server
        resolve_to(monkeypatch, lambda: named.port)
        try:
            # What was acknowledged must be there after the failover: the primary waits for the standby.
            await execute(server.url, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
            async with opened(build_url(standby.url, "failover")) as reader:
                with pytest.raises(StoreError, match="can only be read"):
                    await reader.commit(outcome("a"))
                assert await reader.get_run("c0") is None
            both = f"127.0.0.1:{standby.port},127.0.0.1:{server.port}"
            hosts = both if by == "two hosts" else f"{DATABASE_NAME}:5432"
            url = f"postgresql://postgres@{hosts}/failover?command_timeout=5"
            async with opened(url) as store, opened(url) as reader:
                writers = [asyncio.create_task(keep_committing(store, name, ledger, stopped)) for name in names]
                last: asyncio.Future[int] = asyncio.get_running_loop().create_future()
                following = asyncio.create_task(follow(reader, names[0], last))
                await eventually(lambda: len(ledger) >= 40)
                if by.endswith("answers"):
                    read_only = "ALTER SYSTEM SET default_transaction_read_only = on"
                    await execute(server.url, read_only, "SELECT pg_reload_conf()")
                else:
                    await asyncio.to_thread(server.stop, signal.SIGQUIT)
                await execute(standby.url, "SELECT pg_promote()")
                named = standby
                reached = len(ledger) + 40
                await eventually(lambda: len(ledger) >= reached)
                stopped.set()
                await asyncio.gather(*writers)
                await verify_ledger(store, names, ledger)
                last.set_result(sum(key.startswith(f"{names[0]}-") for key in ledger))
                assert await following == list(range(1, last.result() + 1))
        finally:
            await asyncio.to_thread(standby.stop, signal.SIGQUIT)


# --- references, and a collector -----------------------------------------------------------------------------------


def build_referring_commit() -> Commit:
    """A node, an outcome and an event that name a blob."""
    blob = Blob.from_content("text")
    body = b'[{"hash": "%s"}]' % blob.hash.encode()
    shown = ToolCompleted(call_id="1", name="f", blob=blob.ref)
    return Commit([Node("n", None, body)], [blob], Outcome("k", "tool", body), events=batch(NewEvent(shown)))


async def test_what_is_written_and_what_it_refers_to_is_one_transaction(url: str):
    tables = ("blobs", "nodes", "journal", "feeds", "events", "node_references", "run_references")
    async with opened(url) as store:
        await store.commit(build_referring_commit())
        other = await asyncpg.connect(url)
        writers = [await other.fetchval(f"SELECT xmin::text FROM {table}") for table in tables]  # noqa: S608  # names
        await other.close()
    assert None not in writers
    assert len(set(writers)) == 1, dict(zip(tables, writers, strict=True))


@pytest.mark.parametrize(
    ("first", "second"),
    [("nodes WHERE hash = 'n'", "node_references"), ("feeds WHERE context_id = 'c'", "run_references")],
)
async def test_what_a_collector_deletes_and_a_writer_brings_back_keeps_its_references(
    url: str, first: str, second: str
):
    """The collector is between the statement that deletes a node, or a feed, and that for its references."""
    async with opened(url) as store:
        commit = build_referring_commit()
        await store.commit(commit)
        collector = await asyncpg.connect(url)
        async with collector.transaction():
            await collector.execute(f"DELETE FROM {first}")  # noqa: S608  # constants
            if second == "run_references":
                await collector.execute("DELETE FROM events")
            writing = asyncio.create_task(store.commit(replace(commit, outcome=None)))
            await eventually(lambda: collector.fetchval(BLOCKED))
            await collector.execute(f"DELETE FROM {second}")  # noqa: S608  # constants
        await writing
        await collector.close()
        [holders] = (await store.read_holders([commit.blobs[0].hash])).values()
        assert holders == {"n", "c"}
