"""What every store promises about the memory that conversations share."""

from __future__ import annotations

import asyncio
import itertools
import os
from concurrent.futures import Future

import pytest

from perdure.errors import MemoryChangedError, StoreError
from perdure.ports.store import Commit, MemoryWrite, Outcome, Store, TurnRow
from perdure.tools import Memory
from tests.contract.store.conftest import Database


def put(key: str, value: bytes | None = b"1", namespace: str = "n") -> MemoryWrite:
    return MemoryWrite(namespace, key, value)


async def test_what_was_put_is_recalled(database: Database):
    writer, reader = await database.open(), await database.open()
    assert await writer.commit(Commit(memory=[put("a", b'{"x": 1}'), put("b", b"null"), put("c", b"")])) is None
    assert [await reader.recall("n", key) for key in "abcd"] == [b'{"x": 1}', b"null", b"", None]
    assert await reader.recall("other", "a") is None
    assert await reader.recall_all("other") == {}


async def test_put_replaces_and_delete_removes(store: Store):
    await store.commit(Commit(memory=[put("a", b"1"), put("b", b"1")]))
    await store.commit(Commit(memory=[put("a", b"2"), put("b", None), put("never", None)]))
    assert await store.recall_all("n") == {"a": b"2"}
    assert await store.recall("n", "b") is None
    await store.commit(Commit(memory=[put("b", b"3")]))
    assert await store.recall("n", "b") == b"3"


async def test_the_last_change_of_a_key_counts(store: Store):
    await store.commit(Commit(memory=[put("gone", b"0"), put("back", b"0")]))
    writes = [
        *[put("z", b"%d" % i) for i in range(5)],
        *[put("gone", b"1"), put("gone", None)],
        *[put("back", None), put("back", b"1")],
        *[put("a", b"1"), put("z", b"last", "m"), put("a", b"2")],
    ]
    await store.commit(Commit(memory=writes))
    assert await store.recall_all("n") == {"a": b"2", "back": b"1", "z": b"4"}
    assert await store.recall_all("m") == {"z": b"last"}


async def test_namespaces_are_apart(store: Store):
    spaces = ["n", "N", "n/", "n%", "_", "é", "e\u0301", "\N{SNOWMAN}" * 130]
    await store.commit(Commit(memory=[put("k", space.encode(), space) for space in spaces]))
    for space in spaces:
        assert await store.recall_all(space) == {"k": space.encode()}
    await store.commit(Commit(memory=[put("k", None, "n")]))
    assert await store.recall("n", "k") is None
    assert await store.recall("n/", "k") == b"n/"


async def test_a_namespace_and_a_key_are_not_glued(store: Store):
    await store.commit(Commit(memory=[put("bc", b"1", "a"), put("c", b"2", "ab")]))
    assert await store.recall_all("a") == {"bc": b"1"}
    assert await store.recall_all("ab") == {"c": b"2"}


# What patterns, cases, collations, UTF-16 and the end of the range of code points could get wrong.
LETTERS = ["a", "A", "B", "%", "_", "\\", "*", "é", "\ud7ff", "\ue000", "\uffff", "\U0001f40d", "\U0010ffff"]


async def test_a_prefix_is_exact_and_keys_come_by_code_points(store: Store):
    keys = ["".join(letters) for length in (1, 2, 3) for letters in itertools.product(LETTERS, repeat=length)]
    await store.commit(Commit(memory=[put(key, key.encode()) for key in reversed(keys)]))
    await store.commit(Commit(memory=[put(key, b"x", space) for key in LETTERS for space in ("m", "o")]))
    prefixes = ["", *keys[: len(LETTERS) + len(LETTERS) ** 2], "aaaa", "b", "\U0010ffff" * 4]
    for prefix in prefixes:
        found = await store.recall_all("n", prefix, limit=10_000)
        assert list(found) == sorted(key for key in keys if key.startswith(prefix)), repr(prefix)
        assert all(value == key.encode() for key, value in found.items())


async def test_no_more_than_the_limit(store: Store):
    await store.commit(Commit(memory=[put(f"k{i:04d}") for i in range(1200)]))
    keys = [f"k{i:04d}" for i in range(1200)]
    assert list(await store.recall_all("n", limit=3)) == keys[:3]
    assert list(await store.recall_all("n", "k1", limit=2)) == ["k1000", "k1001"]
    assert list(await store.recall_all("n")) == keys[:1000]
    assert len(await store.recall_all("n", limit=2000)) == 1200
    assert await store.recall_all("n", limit=0) == {}


async def test_large_keys_and_values(database: Database):
    store = await database.open()
    key, value = "\N{SNOWMAN}" * 133, os.urandom(256 * 1024)
    await store.commit(Commit(memory=[put(f"{key}{i}", value + b"%d" % i) for i in range(4)]))
    again = await database.open()
    assert await again.recall("n", f"{key}3") == value + b"3"
    assert await again.recall_all("n", key) == {f"{key}{i}": value + b"%d" % i for i in range(4)}


async def test_a_repeated_commit_does_not_bring_back_what_was_changed_since(store: Store):
    """A call that is tried again after its outcome was recorded has written its memory already: exactly once."""
    call = Commit(outcome=Outcome("k", "tool", b"{}"), memory=[put("a", b"1"), put("b", None)])
    assert await store.commit(call) == b"{}"
    await store.commit(Commit(memory=[put("a", b"2"), put("b", b"2")]))
    assert await store.commit(call) == b"{}"
    assert await store.recall_all("n") == {"a": b"2", "b": b"2"}


async def test_repeated_without_an_outcome_it_is_written_again(store: Store):
    write = Commit(memory=[put("a", b"1")])
    for _ in range(2):
        await store.commit(write)
        assert await store.recall_all("n") == {"a": b"1"}


async def test_writers_that_race_leave_one_whole_commit(database: Database):
    """Each writes the same keys in an order of its own; what is left is one of them, not a mix."""
    stores = [await database.open() for _ in range(3)]
    keys = [f"k{i}" for i in range(10)]

    def all_of(name: int) -> Commit:
        turned = keys[name % 10 :] + keys[: name % 10]
        return Commit(memory=[put(key, b"%d" % name) for key in turned])

    await asyncio.gather(*[stores[i % 3].commit(all_of(i)) for i in range(60)])
    for store in stores:
        found = await store.recall_all("n")
        assert sorted(found) == keys
        assert len(set(found.values())) == 1


async def test_a_failed_commit_leaves_turn_and_memory_alone(store: Store):
    before = Commit(turn=TurnRow("c", "t", "running"), memory=[put("a", b"1")])
    await store.commit(before)
    broken = Commit(
        outcome=Outcome("k", "tool", b"{}"),
        turn=TurnRow("c", "t", "completed", messages=["m"]),
        memory=[put("a", b"2"), put("b", None), put("c", {})],  # type: ignore[arg-type]
    )
    with pytest.raises(StoreError):
        await store.commit(broken)
    assert await store.find_outcomes(["k"]) == {}
    assert await store.get_turn("c", "t") == before.turn
    assert await store.find_message_turn("c", "m") is None
    assert await store.recall_all("n") == {"a": b"1"}


async def test_a_checked_change_is_made_on_what_was_read_or_nothing_is(store: Store):
    def checked(value: bytes | None, before: bytes | None) -> MemoryWrite:
        return MemoryWrite("n", "a", value, True, before)

    async def refused(write: MemoryWrite) -> None:
        with pytest.raises(MemoryChangedError, match="changed by another call"):
            await store.commit(Commit(memory=[put("b"), write], outcome=Outcome("k", "tool", b"{}")))
        assert (await store.find_outcomes(["k"]), await store.recall("n", "b")) == ({}, None)

    await refused(checked(b"1", b"0"))
    await store.commit(Commit(memory=[checked(b"1", None)]))
    await refused(checked(b"2", None))
    await refused(checked(b"2", b"0"))
    await store.commit(Commit(memory=[checked(b"2", b"1")], outcome=Outcome("k", "tool", b"{}")))
    assert await store.recall("n", "a") == b"2"
    # What is recorded is recorded: an attempt that comes too late is told, whatever it would write.
    assert await store.commit(Commit(memory=[checked(b"3", b"1")], outcome=Outcome("k", "tool", b"late"))) == b"{}"
    assert await store.recall("n", "a") == b"2"


async def test_a_checked_delete_removes_what_was_read_or_nothing(store: Store):
    await store.commit(Commit(memory=[put("a", b"1")]))
    for before in (None, b"0"):
        with pytest.raises(MemoryChangedError, match="memory 'n', key 'a' was changed"):
            await store.commit(Commit(memory=[put("b"), MemoryWrite("n", "a", None, True, before)]))
    assert await store.recall_all("n") == {"a": b"1"}
    for before in (b"1", None):
        await store.commit(Commit(memory=[MemoryWrite("n", "a", None, True, before)]))
        assert await store.recall_all("n") == {}


async def test_of_two_who_change_what_both_have_read_one_is_told(database: Database):
    stores = [await database.open() for _ in range(2)]
    await stores[0].commit(Commit(memory=[put("a", b"0")]))
    writes = [MemoryWrite("n", "a", b"%d" % n, True, b"0") for n in range(1, 7)]
    made = await asyncio.gather(
        *(stores[n % 2].commit(Commit(memory=[write])) for n, write in enumerate(writes)), return_exceptions=True
    )
    assert sorted(isinstance(one, MemoryChangedError) for one in made) == [False] + [True] * 5


# ---
# Areas: a tenant's memory, that of the runs without a tenant, and that of all, in one table.


class Reader:
    """Reads for a :class:`Memory`, in the loop of the test."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def recall(self, namespace: str, key: str) -> Future[bytes | None]:
        return asyncio.run_coroutine_threadsafe(self._store.recall(namespace, key), asyncio.get_running_loop())

    def recall_all(self, namespace: str, prefix: str, limit: int) -> Future[dict[str, bytes]]:
        reading = self._store.recall_all(namespace, prefix, limit=limit)
        return asyncio.run_coroutine_threadsafe(reading, asyncio.get_running_loop())


LONG = "\N{SNOWMAN}" * 133
"""The longest namespace, in characters of three bytes."""


async def test_a_tenant_s_memory_is_reached_by_no_other(store: Store):
    tenants = [None, "a", "a:n", "a%3An", "n", "none", "shared", "tenant", "tenant:a", ":", "%", "\U0001f600" * 200]
    spaces = ["n", "n:n", ":n", "a:n", "tenant:a:n", "none:n", "shared:n", "artifacts:run", LONG]
    kept: dict[tuple[str | None, str], str] = {}
    for tenant, space in itertools.product(tenants, spaces):
        writes: list[MemoryWrite] = []
        memory = Memory(Reader(store), writes, tenant=tenant)
        assert await memory.list(space) == {}, (tenant, space)
        await memory.put(space, "k", f"{tenant}/{space}")
        if tenant is None:
            await memory.shared.put(space, "k", "of all")
        await store.commit(Commit(memory=writes))
        kept[tenant, space] = f"{tenant}/{space}"
    engine = ["artifacts:run", "paid:run"]
    await store.commit(Commit(memory=[put("k", b'"engine"', space) for space in engine]))
    for (tenant, space), value in kept.items():
        memory = Memory(Reader(store), tenant=tenant)
        assert await memory.list(space) == {"k": value}
        assert await memory.shared.get(space, "k") == "of all"
    assert [await store.recall(space, "k") for space in engine] == [b'"engine"'] * 2
