"""``perdure store copy``: any store into any database, complete or not opened by a worker."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from perdure.errors import (
    InvalidInputError,
    StoreError,
    StoreLocationError,
    StoreMismatchError,
    TranscriptCorruptedError,
)
from perdure.ports.store import Blob, Commit, EventBatch, MemoryWrite, NewEvent, Node, Outcome, RunRow, Store, TurnRow
from perdure.store import migrations, open_store
from perdure.store.administration import copy_store
from perdure.store.chain import hash_node
from perdure.store.copies import COPIED_TABLES, CopyResult
from perdure.store.schema import TABLES
from perdure.types.events import ModelDelta
from tests.support.postgres import run_apart

MakeUrl = Callable[[str, str], str]
KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
BIG = b"x" * 20_000_000


@pytest.fixture
def make_url(request: pytest.FixtureRequest, tmp_path: Path) -> MakeUrl:
    def make(kind: str, name: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path}/{name}.db"
        return str(request.getfixturevalue("postgres_databases").make())

    return make


async def opened(url: str) -> Store:
    store = open_store(url)
    await store.open()
    return store


async def fill(store: Store, count: int = 5) -> str:
    """Rows in every table; return the last head."""
    head: str | None = None
    for number in range(count):
        body = f'[{{"role":"user","parts":[{{"type":"text","text":"{number} \\\\u0000"}}]}}]'.encode()
        node = Node(hash_node(head, body), head, body)
        blob = Blob.from_content(f"blob {number}".encode() * 100)
        run = RunRow(
            "a\0run", "agent", "scope", node.hash, "running", number, None, asked_at=f"2026-01-01T00:00:0{number}"
        )
        turn = TurnRow("a\0run", f"t{number}", "completed", node.hash, b"r", asked_at="2026", messages=("m" * 900,))
        event = NewEvent(ModelDelta(at="2026", text="hello"), key=f"{number}" + "k" * 700)
        await store.claim(f"key {number}", "owner")
        await store.commit(
            Commit(
                [node], [blob], Outcome(f"key {number}", "model", b"outcome"), run, turn,
                memory=[MemoryWrite("space\1", f"k{number}", b"1")],
                events=EventBatch("a\0run", [event], token=f"{number}"),
            )
        )  # fmt: skip
        head = node.hash
    return head or ""


async def copied(source: str, target: str, **options: bool) -> CopyResult:
    return await copy_store(source, target, report=lambda _: None, **options)


@pytest.mark.parametrize("source_kind", KINDS)
@pytest.mark.parametrize("target_kind", KINDS)
async def test_a_copy_has_every_row_and_the_same_id(make_url: MakeUrl, source_kind: str, target_kind: str) -> None:
    source_url, target_url = make_url(source_kind, "from"), make_url(target_kind, "to")
    source = await opened(source_url)
    head = await fill(source)
    await source.commit(Commit(blobs=[Blob.from_content(BIG)]))
    result = await copied(source_url, target_url)
    assert result.tables.keys() == set(COPIED_TABLES)
    empty = [table for table, copied_table in result.tables.items() if not copied_table.rows]
    assert not set(empty) & {"nodes", "blobs", "journal", "runs", "turns", "sent", "memory", "events", "feeds"}
    target = await opened(target_url)
    assert target.store_id == source.store_id == result.store_id
    assert await target.read_nodes(head) == await source.read_nodes(head)
    big = hashlib.sha256(BIG).hexdigest()
    assert (await target.read_blobs([big]))[big] == BIG
    assert await target.get_run("a\0run") == await source.get_run("a\0run")
    assert await target.read_events("a\0run") == await source.read_events("a\0run")
    assert await target.find_message_turn("a\0run", "m" * 900) == "t0"
    assert await target.recall("space\1", "k1") == b"1"
    assert (await target.claim("key 1", "other")).state == "done"
    await target.close()
    await source.close()
    assert (await copied(source_url, target_url)).tables == result.tables, "the same again only compares"


@pytest.mark.parametrize("target_kind", KINDS)
async def test_a_copy_that_is_interrupted_is_not_opened_and_goes_on(
    make_url: MakeUrl, target_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source_url, target_url = make_url("sqlite", "from"), make_url(target_kind, "to")
    source = await opened(source_url)
    await fill(source, 30)
    await source.close()
    monkeypatch.setattr("perdure.store.sqlite_copy.PAGE_ROWS", 7)
    lines: list[str] = []

    def stop_later(line: str) -> None:
        lines.append(line)
        if line.startswith("journal: 14"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await copy_store(source_url, target_url, report=stop_later)
    with pytest.raises(StoreLocationError, match="copy that is not complete") as caught:
        await opened(target_url)
    assert "perdure store copy FROM TO" in str(caught.value)
    with pytest.raises(StoreLocationError, match="not complete"):
        await copied(target_url, make_url("sqlite", "third"))

    again: list[str] = []
    result = await copy_store(source_url, target_url, report=again.append)
    assert "nodes: 7 rows copied" not in again, "what was copied is not copied again"
    assert "journal: 16 rows copied" in again
    assert result.tables["journal"].rows == 30
    store = await opened(target_url)
    assert store.store_id == result.store_id
    await store.close()


async def test_a_source_that_was_changed_between_two_tries(make_url: MakeUrl) -> None:
    source_url, target_url = make_url("sqlite", "from"), make_url("sqlite", "to")
    source = await opened(source_url)
    await fill(source)

    def stop(line: str) -> None:
        if line.startswith("memory: 5 rows copied"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await copy_store(source_url, target_url, report=stop)
    await fill(source, 9)  # rows before, between and behind those that were copied
    result = await copied(source_url, target_url)
    assert result.tables["journal"].rows == 9
    await source.close()


@pytest.mark.parametrize("source_kind", KINDS)
async def test_a_source_that_is_written_meanwhile_is_an_error(make_url: MakeUrl, source_kind: str) -> None:
    source_url, target_url = make_url(source_kind, "from"), make_url("sqlite", "to")
    source = await opened(source_url)
    await fill(source)
    lines: list[str] = []

    def write(line: str) -> None:
        if not lines:
            run_apart(fill_more(source_url))
        lines.append(line)

    with pytest.raises(StoreError, match="was written while it was copied") as caught:
        await copy_store(source_url, target_url, report=write)
    assert "same command again" in str(caught.value)
    with pytest.raises(StoreLocationError, match="not complete"):
        await opened(target_url)
    assert (await copied(source_url, target_url)).tables["memory"].rows == 6
    await source.close()


async def fill_more(url: str) -> None:
    store = await opened(url)
    await store.commit(Commit(memory=[MemoryWrite("space\1", "more", b"1")]))
    await store.close()


@pytest.mark.parametrize("target_kind", KINDS)
async def test_two_copies_at_once(make_url: MakeUrl, target_kind: str) -> None:
    source_url, target_url = make_url("sqlite", "from"), make_url(target_kind, "to")
    source = await opened(source_url)
    await fill(source)
    await source.close()
    refusals: list[StoreError] = []

    def copy_too(line: str) -> None:
        if line.startswith("memory: ") and not refusals:
            try:
                run_apart(copied(source_url, target_url))
                run_apart(fill_more(target_url))  # a worker uses it
            except StoreError as error:
                refusals.append(error)

    if target_kind == "sqlite":
        with pytest.raises(StoreError, match="has completed the copy"):
            await copy_store(source_url, target_url, report=copy_too)
        store = await opened(target_url)
        assert await store.recall("space\1", "more") == b"1", "what workers wrote is not deleted"
        await store.close()
    else:
        await copy_store(source_url, target_url, report=copy_too)
        assert "another `perdure store copy` writes to" in str(refusals[0])


@pytest.mark.parametrize("target_kind", KINDS)
async def test_targets_that_are_refused(make_url: MakeUrl, target_kind: str) -> None:
    source_url, target_url = make_url("sqlite", "from"), make_url(target_kind, "to")
    with pytest.raises(StoreError, match="there is no store at"):
        await copied(source_url, target_url)
    source = await opened(source_url)
    await fill(source)
    await source.close()
    other = await opened(target_url)  # empty: made by `perdure store migrate`, say
    await other.close()
    assert (await copied(source_url, target_url)).tables["runs"].rows == 1

    third_url = make_url(target_kind, "third")
    third = await opened(third_url)
    await fill(third)
    await third.close()
    with pytest.raises(StoreMismatchError, match="has another store already"):
        await copied(source_url, third_url)
    with pytest.raises(InvalidInputError, match="FROM and TO are the same store"):
        await copied(third_url, third_url)


async def test_damaged_rows_are_named_and_copied_only_on_demand(make_url: MakeUrl, tmp_path: Path) -> None:
    source_url, target_url = make_url("sqlite", "from"), make_url("sqlite", "to")
    source = await opened(source_url)
    head = await fill(source)
    await source.close()
    connection = sqlite3.connect(tmp_path / "from.db")
    connection.execute("UPDATE nodes SET body = 'altered' WHERE hash = ?", (head,))
    connection.commit()
    connection.close()
    with pytest.raises(TranscriptCorruptedError, match=f"node {head}"):
        await copied(source_url, target_url)
    result = await copied(source_url, target_url, keep_damaged=True)
    assert result.damaged == [f"node {head}"]


def test_every_table_is_copied_and_has_a_primary_key() -> None:
    assert {*COPIED_TABLES, "meta"} == set(TABLES)
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        migrations.upgrade(connection)
        inspector = sa.inspect(connection)
        for table in COPIED_TABLES:
            assert inspector.get_pk_constraint(table)["constrained_columns"], table
            for column in inspector.get_columns(table):  # values of others would have to be converted
                assert isinstance(column["type"], sa.Text | sa.Integer | sa.LargeBinary | sa.Float), column
    engine.dispose()
