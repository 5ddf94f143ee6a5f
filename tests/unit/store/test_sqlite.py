"""The SQLite adapter where the world does not behave: full, locked, read-only, replaced, cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from perdure.errors import (
    RuntimeSetupError,
    StoreError,
    StoreMismatchError,
    StoreVersionError,
    TranscriptCorruptedError,
)
from perdure.ports.store import Blob, Commit, Node, Outcome
from perdure.store import Chain, open_store
from perdure.store.sqlite import SqliteStore
from perdure.types.messages import Message


def outcome(key: str, size: int = 2) -> Commit:
    return Commit(outcome=Outcome(key, "tool", b"x" * size), blobs=[Blob(f"blob-{key}", b"y" * size)])


@contextlib.asynccontextmanager
async def opened(path: Path, busy_timeout: float = 0.05) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(f"sqlite:///{path}", busy_timeout=busy_timeout)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def reading(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(f"sqlite:///{path}", busy_timeout=0.05)
    await store.open(create=False)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with opened(tmp_path / "store.db") as store:
        yield store


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("only root can mount a small disk")
    made = subprocess.run([mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("cannot mount a small disk here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


# --- a full disk -------------------------------------------------------------------------------------------------


async def test_a_full_disk_writes_nothing_and_works_again(disk: Path):
    async with opened(disk / "store.db") as store:
        await store.commit(outcome("before"))
        ballast = disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(b"z" * 4096):
                pass
        with pytest.raises(StoreError, match="full") as caught:
            await store.commit(outcome("during", 100_000))
        assert caught.value.retryable
        assert str(disk) in caught.value.message
        assert set(await store.find_outcomes(["before", "during"])) == {"before"}
        assert await store.read_blobs(["blob-during"]) == {}
        ballast.unlink()
        await store.commit(outcome("during", 100_000))
        assert set(await store.find_outcomes(["before", "during"])) == {"before", "during"}


async def test_a_full_database_writes_nothing_and_works_again(store: SqliteStore):
    """The same where no disk can be mounted: the limit goes with the connection, which a failure ends."""
    pages = await store._threads.writer.run(lambda c: c.execute("PRAGMA page_count").fetchone()[0])
    await store._threads.writer.run(lambda c: c.execute(f"PRAGMA max_page_count = {pages + 2}").fetchone())
    with pytest.raises(StoreError, match="full"):
        await store.commit(outcome("a", 100_000))
    assert await store.find_outcomes(["a"]) == {}
    await store.commit(outcome("a", 100_000))
    assert len(await store.find_outcomes(["a"])) == 1


async def test_one_commit_that_fails_does_not_take_others_along(store: SqliteStore):
    broken = Commit(nodes=[Node("broken", None, None)])  # type: ignore[arg-type]
    commits = [outcome("a"), broken, outcome("b")]
    done = await asyncio.gather(*[store.commit(commit) for commit in commits], return_exceptions=True)
    assert [isinstance(answer, StoreError) for answer in done] == [False, True, False]
    assert set(await store.find_outcomes(["a", "b"])) == {"a", "b"}


# --- locked, read-only, not ours ---------------------------------------------------------------------------------

LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
"""


async def test_a_locked_store_can_be_read_and_works_again(tmp_path: Path):
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await store.commit(outcome("before"))
        with subprocess.Popen(
            [sys.executable, "-c", LOCK, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            assert other.stdout.readline() == "locked\n"
            failed = await asyncio.gather(*[store.commit(outcome(f"k{i}")) for i in range(5)], return_exceptions=True)
            assert all(isinstance(error, StoreError) and "locked" in error.message for error in failed)
            assert len(await store.find_outcomes(["before"])) == 1
            async with opened(path) as second:
                assert second.store_id == store.store_id
            other.stdin.write("\n")
        await store.commit(outcome("after"))


async def test_a_read_only_disk(disk: Path):
    async with opened(disk / "store.db") as store:
        await store.commit(outcome("a"))
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with pytest.raises(StoreError, match=r"read-only|cannot be opened") as caught:
        async with opened(disk / "store.db") as store:
            await store.commit(outcome("b"))
    assert "writable" in (caught.value.hint or "")


async def test_a_store_on_a_read_only_disk_is_read(disk: Path):
    path = disk / "store.db"
    async with opened(path) as store:
        await store.commit(outcome("a"))
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    async with reading(path) as reader:
        assert len(await reader.find_outcomes(["a"])) == 1
        assert await reader.wait_for_event("c", 0, 0.0) == 0
        with pytest.raises(StoreError, match=r"read-only|cannot be opened"):
            await reader.commit(outcome("b"))
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        async with opened(path) as store:
            await store.commit(outcome("b"))
            assert len(await reader.find_outcomes(["a", "b"])) == 2
        assert len(await reader.find_outcomes(["a", "b"])) == 2


async def test_a_reader_makes_no_file_and_sees_the_store_that_another_makes(tmp_path: Path):
    path = tmp_path / "store.db"
    async with reading(path) as reader:
        assert (reader.store_id, await reader.list_runs(), await reader.find_outcomes(["a"])) == ("", [], {})
        with pytest.raises(StoreError, match="no store at"):
            await reader.commit(outcome("a"))
        assert list(tmp_path.iterdir()) == []
        path.touch()  # as a program leaves it that dies before it has written anything
        assert await reader.find_outcomes(["a"]) == {}
        async with opened(path) as store:
            await store.commit(outcome("a"))
            assert len(await reader.find_outcomes(["a"])) == 1
            await reader.commit(outcome("b"))
            assert reader.store_id == store.store_id


async def test_a_reader_writes_nothing(tmp_path: Path):
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await store.commit(outcome("a"))
    before = path.stat(), path.read_bytes()
    async with reading(path) as reader:
        assert len(await reader.find_outcomes(["a"])) == 1
    assert (path.stat().st_mtime_ns, path.read_bytes()) == (before[0].st_mtime_ns, before[1])


async def test_its_files_are_readable_by_their_owner_alone(tmp_path: Path):
    tmp_path.chmod(0o755)
    before = os.umask(0o022)
    try:
        async with opened(tmp_path / "store.db") as store:
            await store.commit(outcome("a"))
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("store.db", "store.db-wal", "store.db-shm"), 0o600)
    assert tmp_path.stat().st_mode & 0o777 == 0o755, "a directory that a user named is left alone"


async def test_a_missing_directory(tmp_path: Path):
    with pytest.raises(StoreError, match="no directory"):
        async with opened(tmp_path / "no" / "store.db"):
            pass
    with pytest.raises(StoreError, match="is a directory"):
        async with opened(tmp_path):
            pass


async def test_not_a_database(tmp_path: Path):
    path = tmp_path / "store.db"
    path.write_text("notes for tomorrow\n" * 200)
    with pytest.raises(StoreError, match="not a SQLite database"):
        async with opened(path):
            pass
    assert path.read_text().startswith("notes")


async def test_the_database_of_another_program(tmp_path: Path):
    path = tmp_path / "store.db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE songs (name TEXT)")
    with pytest.raises(StoreError, match="songs"):
        async with opened(path):
            pass


async def test_a_damaged_file(tmp_path: Path):
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await store.commit(outcome("a", 50_000))
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    with pytest.raises(StoreError, match=r"damaged|not laid out") as caught:
        async with opened(path) as store:
            await store.find_outcomes(["a"])
    assert str(path) in caught.value.message


async def test_a_store_whose_creation_fails_is_created_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "store.db"
    with monkeypatch.context() as patch:
        patch.setattr("perdure.store.meta.assign_store_id", lambda *_: 1 / 0)  # in the transaction, behind the tables
        with pytest.raises(ZeroDivisionError):
            async with opened(path):
                pass
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
    async with opened(path) as store:
        await store.commit(outcome("a"))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # from Python 3.12 on
def test_processes_that_create_it_at_once_make_one_store(tmp_path: Path):
    path = tmp_path / "store.db"
    forking = multiprocessing.get_context("fork")
    ready, answers = forking.Barrier(3), forking.SimpleQueue()

    async def create(number: int) -> None:
        ready.wait(60)
        async with opened(path, busy_timeout=60) as store:
            await store.commit(outcome(f"k{number}"))
        answers.put(store.store_id)

    processes = [forking.Process(target=lambda number: asyncio.run(create(number)), args=(n,)) for n in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]

    async def check() -> None:
        async with opened(path) as store:
            assert {answers.get() for _ in processes} == {store.store_id}
            assert len(await store.find_outcomes([f"k{n}" for n in range(3)])) == 3

    asyncio.run(check())


async def test_a_newer_schema(tmp_path: Path):
    path = tmp_path / "store.db"
    async with opened(path):
        pass
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as newer:
        newer.execute("UPDATE perdure_version SET version_num = '9999'")
        newer.execute("UPDATE meta SET usable_from = '9999'")
    with pytest.raises(StoreVersionError, match="9999"):
        async with opened(path):
            pass


async def test_altered_rows_are_found_out(tmp_path: Path):
    path = tmp_path / "store.db"
    async with opened(path) as store:
        one, _ = Chain(store).extend(None, [Message.user("one")])
        two, _ = Chain(store).extend(one.hash, [Message.user("two")])
        await store.commit(Commit(nodes=[one, two]))
        for change in (
            "UPDATE nodes SET body = replace(body, 'one', 'eno')",  # the bytes come back as text
            "UPDATE nodes SET parent = (SELECT max(hash) FROM nodes)",  # a circle
        ):
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute(change)
            with pytest.raises(TranscriptCorruptedError, match=r"[0-9a-f]{64}"):
                await Chain(store).load(two.hash)


# --- the file goes away ------------------------------------------------------------------------------------------


async def test_a_removed_file_is_missed_and_found_again(store: SqliteStore):
    await store.commit(outcome("a"))
    await store.close()
    await store.open()
    await store.commit(outcome("b"))
    aside = store.path.with_suffix(".aside")
    with contextlib.closing(sqlite3.connect(store.path)) as source, contextlib.closing(sqlite3.connect(aside)) as copy:
        source.backup(copy)
    for file in store.path.parent.glob("store.db*"):
        file.unlink()
    with pytest.raises(StoreError, match="removed"):
        await store.commit(outcome("c"))
    with pytest.raises(StoreError, match="removed"):
        await store.find_outcomes(["a"])
    assert not store.path.exists()
    aside.rename(store.path)
    await store.commit(outcome("c"))
    assert set(await store.find_outcomes(["a", "b", "c"])) == {"a", "b", "c"}


async def test_another_store_in_its_place_is_refused(store: SqliteStore, tmp_path: Path):
    async with opened(tmp_path / "other.db"):
        pass
    for suffix in ("-wal", "-shm"):  # else SQLite applies what the old file had not taken in yet to the new one
        Path(f"{store.path}{suffix}").unlink()
    (tmp_path / "other.db").replace(store.path)
    with pytest.raises(StoreMismatchError, match=store.store_id):
        await store.commit(outcome("a"))
    with pytest.raises(StoreMismatchError):
        await store.find_outcomes(["a"])


# --- threads -----------------------------------------------------------------------------------------------------


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("perdure-store")}


async def test_close_leaves_no_thread_and_open_may_follow(tmp_path: Path):
    store = SqliteStore(f"sqlite:///{tmp_path}/store.db")
    for _ in range(2):
        await store.open()
        await store.open()
        assert threads() == {"perdure-store-write", "perdure-store-read"}
        await store.close()
        await store.close()
        assert threads() == set()
    with pytest.raises(StoreError, match="not open"):
        await store.find_outcomes(["a"])
    with pytest.raises(StoreError, match="no directory"):
        async with opened(tmp_path / "no" / "store.db"):
            pass
    assert threads() == set()


async def test_a_cancelled_commit_is_written(store: SqliteStore):
    gate, reached = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        reached.set()
        gate.wait(60)

    held = store._threads.writer.run(hold)
    await asyncio.to_thread(reached.wait, 60)
    commits = [asyncio.create_task(store.commit(outcome(f"k{i}"))) for i in range(3)]
    await asyncio.sleep(0)  # each hands its work over
    for commit in commits:
        commit.cancel()
    done = await asyncio.gather(*commits, return_exceptions=True)
    assert all(isinstance(answer, asyncio.CancelledError) for answer in done)
    gate.set()
    await held
    await store.commit(Commit())  # behind them in the queue
    assert len(await store.find_outcomes([f"k{i}" for i in range(3)])) == 3


async def test_close_waits_for_what_was_handed_over(tmp_path: Path):
    path = tmp_path / "store.db"
    async with opened(path) as store:
        commits = [asyncio.create_task(store.commit(outcome(f"k{i}"))) for i in range(100)]
        await asyncio.sleep(0)
    await asyncio.gather(*commits)
    async with opened(path) as store:
        assert len(await store.find_outcomes([f"k{i}" for i in range(100)])) == 100


async def test_several_event_loops_share_it(store: SqliteStore):
    def elsewhere() -> bytes | None:
        return asyncio.run(store.commit(outcome("elsewhere")))

    answers = await asyncio.gather(asyncio.to_thread(elsewhere), store.commit(outcome("here")))
    assert answers == [b"xx", b"xx"]


async def test_event_loops_that_read_at_once(store: SqliteStore):
    """The connection for quick reads is one thread's: under it no other thread closes it."""
    await store.commit(outcome("a"))

    async def read() -> bool:
        return all([await store.find_outcomes(["a"]) == {"a": b"xx"} for _ in range(300)])

    assert all(await asyncio.gather(read(), *[asyncio.to_thread(lambda: asyncio.run(read())) for _ in range(3)]))


# --- opening -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql+asyncpg://db", "names no host or no database"),
        ("mysql://ana:secret@db", "mysql"),
        ("store.db", "sqlite:///"),
        ("", "sqlite:///"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
    ],
)
def test_urls_that_name_no_store(url: str, says: str):
    with pytest.raises(RuntimeSetupError, match=says) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


def test_urls_that_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert SqliteStore("sqlite:///a b%20#?.db").path == tmp_path / "a b%20#?.db"
    assert SqliteStore("sqlite:////var/store.db").path == Path("/var/store.db")


async def test_strange_paths(tmp_path: Path):
    folder = tmp_path / "a b%20#?&ü"
    folder.mkdir()
    async with opened(folder / "100%.db") as store:
        await store.commit(outcome("a"))
    assert (folder / "100%.db").exists()
