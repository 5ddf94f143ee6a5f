"""What every store promises about turns and the messages they took in."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from perdure.ports.store import Commit, MemoryWrite, Node, Outcome, RunRow, Store, TurnRow
from tests.contract.store.conftest import Database


def at(second: int) -> str:
    return f"2026-01-01T00:00:{second:02d}.000000+00:00"


def turn(task_id: str = "t1", **changes: object) -> TurnRow:
    fields = {"context_id": "c", "status": "running", "asked_at": at(1)} | changes
    return TurnRow(task_id=task_id, **fields)  # type: ignore[arg-type]


async def test_a_turn_is_kept_without_its_messages(store: Store):
    whole = turn(status="completed", head="h", result=b'{"content":"hi"}', messages=["m1", "m2"])
    assert await store.commit(Commit(turn=whole)) is None
    assert await store.get_turn("c", "t1") == replace(whole, messages=())
    assert await store.find_message_turn("c", "m1") == await store.find_message_turn("c", "m2") == "t1"


async def test_what_is_unknown_is_none(store: Store):
    await store.commit(Commit(turn=turn(messages=["m"])))
    assert await store.get_turn("c", "t2") is None
    assert await store.get_turn("d", "t1") is None
    assert await store.find_message_turn("c", "n") is None
    assert await store.find_message_turn("d", "m") is None


async def test_conversations_do_not_share_their_ids(store: Store):
    for context_id in ("c", "d"):
        for task_id in ("t1", "t2"):
            row = turn(task_id, context_id=context_id, head=context_id + task_id, messages=[f"m-{task_id}"])
            await store.commit(Commit(turn=row))
    for context_id in ("c", "d"):
        for task_id in ("t1", "t2"):
            kept = await store.get_turn(context_id, task_id)
            assert kept is not None
            assert (kept.context_id, kept.task_id, kept.head) == (context_id, task_id, context_id + task_id)
            assert await store.find_message_turn(context_id, f"m-{task_id}") == task_id


async def test_the_next_call_of_a_turn_replaces_its_row_and_adds_messages(store: Store):
    await store.commit(Commit(turn=turn(head="h1", messages=["m1"])))
    await store.commit(Commit(turn=turn(head="h2", asked_at=at(2), messages=["m2"])))
    ended = turn(status="failed", asked_at=at(3), result=b"{}")
    await store.commit(Commit(turn=ended))
    assert await store.get_turn("c", "t1") == ended
    assert [await store.find_message_turn("c", message) for message in ("m1", "m2")] == ["t1", "t1"]


async def test_the_same_turn_again_changes_nothing(database: Database):
    row = turn(head="h", messages=["m", "m"])
    for _ in range(2):
        store = await database.open()
        await store.commit(Commit(turn=row))
    assert await store.get_turn("c", "t1") == replace(row, messages=())
    assert await store.find_message_turn("c", "m") == "t1"


async def test_a_message_belongs_to_the_turn_that_took_it_first(store: Store):
    await store.commit(Commit(turn=turn("t1", messages=["a", "b"])))
    await store.commit(Commit(turn=turn("t2", asked_at=at(9), messages=["b", "c"])))
    assert [await store.find_message_turn("c", message) for message in "abc"] == ["t1", "t1", "t2"]


async def test_a_turn_that_was_asked_for_earlier_is_dropped_and_the_rest_written(store: Store):
    kept = turn(status="cancelled", head="h2", asked_at=at(2))
    await store.commit(Commit(turn=kept))
    late = Commit(
        nodes=[Node("n", None, b"[]")],
        outcome=Outcome("k", "model", b"{}"),
        run=RunRow("c", "agent", "scope", "n", "running", asked_at=at(1)),
        turn=turn(head="h1", asked_at=at(1), messages=["late"]),
        memory=[MemoryWrite("n", "k", b"1")],
    )
    assert await store.commit(late) == b"{}"
    assert await store.get_turn("c", "t1") == kept
    assert await store.find_message_turn("c", "late") is None  # nothing goes on from the turn that took it
    assert await store.read_nodes("n") == [Node("n", None, b"[]")]
    assert await store.get_run("c") is not None
    assert await store.recall("n", "k") == b"1"
    again = turn(head="h3", asked_at=at(2), messages=["late"])  # the same call once more
    await store.commit(Commit(turn=again))
    assert await store.get_turn("c", "t1") == replace(again, messages=())
    assert await store.find_message_turn("c", "late") == "t1"


async def test_a_late_run_row_does_not_take_the_turn_along(store: Store):
    run = RunRow("c", "agent", "scope", None, "completed", asked_at=at(5))
    await store.commit(Commit(run=run))
    await store.commit(Commit(run=replace(run, status="running", asked_at=at(1)), turn=turn()))
    kept = await store.get_run("c")
    assert kept is not None
    assert kept.status == "completed"
    assert await store.get_turn("c", "t1") == turn()


@pytest.mark.parametrize("later", [at(1), at(2)], ids=["of the same call", "of a later one"])
async def test_a_lost_outcome_writes_nothing(database: Database, later: str):
    first, second = await database.open(), await database.open()

    def said(name: str, asked_at: str) -> Commit:
        return Commit(
            outcome=Outcome("k", "model", name.encode()),
            run=RunRow("c", "agent", "scope", name, "running", asked_at=asked_at),
            turn=turn(head=name, asked_at=asked_at, messages=[f"m-{name}"]),
            memory=[MemoryWrite("n", name, b"1"), MemoryWrite("n", "who", name.encode())],
        )

    assert await first.commit(said("first", at(1))) == b"first"
    assert await second.commit(said("late", later)) == b"first"
    run, kept = await second.get_run("c"), await second.get_turn("c", "t1")
    assert run is not None
    assert kept is not None
    assert (run.head, kept.head) == ("first", "first")
    assert [await second.find_message_turn("c", message) for message in ("m-first", "m-late")] == ["t1", None]
    assert await second.recall_all("n") == {"first": b"1", "who": b"first"}


async def test_writers_that_race_write_all_of_one(database: Database):
    """Whose outcome is recorded, his are the turn, the messages and the memory; nothing is mixed."""
    stores = [await database.open() for _ in range(3)]

    def said(key: str, name: str) -> Commit:
        return Commit(
            outcome=Outcome(key, "model", name.encode()),
            turn=turn(key, head=name, messages=[f"{key}-{name}"]),
            memory=[MemoryWrite("who", key, name.encode()), MemoryWrite(key, name, b"1")],
        )

    keys = [f"k{i}" for i in range(30)]
    commits = [(key, i, store) for key in keys for i, store in enumerate(stores)]
    won = await asyncio.gather(*[store.commit(said(key, f"w{i}")) for key, i, store in commits])
    by_key = {key: {body for (of, _, _), body in zip(commits, won, strict=True) if of == key} for key in keys}
    for key, bodies in by_key.items():
        assert len(bodies) == 1
        name = (bodies.pop() or b"").decode()
        kept = await stores[0].get_turn("c", key)
        assert kept is not None
        assert kept.head == name
        taken = [await stores[1].find_message_turn("c", f"{key}-w{i}") for i in range(3)]
        assert taken == [key if name == f"w{i}" else None for i in range(3)]
        assert await stores[2].recall_all(key) == {name: b"1"}
        assert await stores[0].recall("who", key) == name.encode()


async def test_turns_that_race_for_a_message(database: Database):
    stores = [await database.open() for _ in range(3)]
    rows = [turn(f"t{i}", messages=["m", f"own-{i}"]) for i in range(30)]
    await asyncio.gather(*[stores[i % 3].commit(Commit(turn=row)) for i, row in enumerate(rows)])
    answers = {await store.find_message_turn("c", "m") for store in stores}
    assert len(answers) == 1
    assert answers <= {row.task_id for row in rows}
    assert [await stores[0].find_message_turn("c", f"own-{i}") for i in range(30)] == [row.task_id for row in rows]


async def test_ids_of_any_text(store: Store):
    ids = ["%", "_", "'; --", "\N{SNOWMAN}" * 130, "é", "e\u0301", "A", "a", " ", "\U0010ffff"]
    for name in ids:
        await store.commit(Commit(turn=turn(name, head=name, messages=[f"m{name}"])))
    for name in ids:
        kept = await store.get_turn("c", name)
        assert kept is not None
        assert kept.head == name
        assert await store.find_message_turn("c", f"m{name}") == name


async def test_the_turns_of_a_run_in_pages(store: Store):
    for task_id in ("t1", "t2", "t3"):
        await store.commit(Commit(turn=turn(task_id, status="completed", result=b"{}", messages=[task_id])))
    await store.commit(Commit(turn=turn("t1", asked_at=at(2), context_id="d")))
    await store.commit(Commit(turn=turn("t1", status="failed", asked_at=at(2))))
    rows = await store.list_turns("c")
    assert [(row.task_id, row.status, row.result, row.messages) for row in rows] == [
        ("t3", "completed", None, ()),
        ("t2", "completed", None, ()),
        ("t1", "failed", None, ()),
    ]
    assert rows[2].created_at < rows[1].created_at < rows[2].updated_at
    pages, after = [], None
    while page := await store.list_turns("c", after=after, limit=2):
        pages.append([row.task_id for row in page])
        after = page[-1].created_at, page[-1].task_id
    assert pages == [["t3", "t2"], ["t1"]]
    assert await store.list_turns("nothing") == []
