"""``ctx.memory`` without an engine: what a test by hand sees, what is refused, what a call hands over to be kept."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from perdure import Memory, RunContext, ToolContext, tool
from perdure.context.memory import MAX_NAME_BYTES, MAX_VALUE_BYTES
from perdure.errors import InvalidInputError
from perdure.ports.store import MemoryWrite


class Shelf:
    """What is kept already. Futures are answered from another thread, as the engine's are."""

    def __init__(self, kept: dict[tuple[str, str], bytes]) -> None:
        self.kept = kept
        self.asked: list[Any] = []

    def recall(self, namespace: str, key: str) -> Future[bytes | None]:
        self.asked.append((namespace, key))
        return self._later(self.kept.get((namespace, key)))

    def recall_all(self, namespace: str, prefix: str, limit: int) -> Future[dict[str, bytes]]:
        self.asked.append((namespace, prefix, limit))
        there = sorted(key for space, key in self.kept if space == namespace and key.startswith(prefix))
        return self._later({key: self.kept[namespace, key] for key in there[:limit]})

    def _later(self, value: Any) -> Future[Any]:
        future: Future[Any] = Future()
        threading.Thread(target=future.set_result, args=(value,)).start()
        return future


async def test_a_context_made_by_hand_has_a_memory_of_its_own() -> None:
    @tool
    async def visit(ctx: ToolContext, name: str) -> int:
        """Count the visits of a user."""
        seen: int = await ctx.memory.get("visits", name, 0) + 1
        await ctx.memory.put("visits", name, seen)
        return seen

    ctx = ToolContext()
    assert [await visit(ctx, "ana"), await visit(ctx, "ana"), await visit(ToolContext(), "ana")] == [1, 2, 1]
    shared = Memory()
    assert [await visit(ToolContext(memory=shared), "bo") for _ in range(2)] == [1, 2]
    assert await RunContext(memory=shared).memory.list("visits") == {"bo": 2}


def test_a_plain_function_needs_no_event_loop() -> None:
    memory = ToolContext().memory.blocking
    assert memory.get("n", "k", "none") == "none"
    memory.put("n", "k", {"a": [1, None, "ж"]})
    memory.put("n", "other", 2)
    memory.put("m", "k", 3)
    assert memory.get("n", "k") == {"a": [1, None, "ж"]}
    assert memory.list("n", "o") == {"other": 2}
    memory.delete("n", "k")
    memory.delete("n", "never there")
    assert memory.get("n", "k", "none") == "none"
    assert memory.list("n") == {"other": 2}


async def test_a_kept_none_is_no_default() -> None:
    memory = Memory()
    await memory.put("n", "k", None)
    assert await memory.get("n", "k", "default") is None
    assert await memory.list("n") == {"k": None}


async def test_a_changed_value_is_not_the_kept_one() -> None:
    """Values are copies: who changes a list that was read has to put it back."""
    memory = Memory()
    value = {"a": [1]}
    await memory.put("n", "k", value)
    value["a"].append(2)
    (await memory.get("n", "k"))["a"].append(3)
    assert await memory.get("n", "k") == {"a": [1]}


async def test_reads_see_the_calls_own_writes_over_what_is_kept() -> None:
    shelf = Shelf({("none:n", key): b'"kept"' for key in "abc"} | {("none:m", "a"): b"0"})
    writes: list[MemoryWrite] = []
    memory = Memory(shelf, writes)
    assert await memory.get("n", "a") == "kept"
    await memory.put("n", "a", "new")
    await memory.delete("n", "b")
    await memory.put("n", "d", "new")
    shelf.asked.clear()
    assert [await memory.get("n", "a"), await memory.get("n", "b", "gone")] == ["new", "gone"]
    assert shelf.asked == []  # what the call wrote itself is not asked for
    assert await memory.list("n") == {"a": "new", "c": "kept", "d": "new"}
    assert list(await memory.list("n", limit=2)) == ["a", "c"]
    assert await memory.list("m") == {"a": 0}
    assert {(write.key, write.value) for write in writes} == {("a", b'"new"'), ("b", None), ("d", b'"new"')}


async def test_a_key_that_is_written_often_is_kept_once() -> None:
    writes: list[MemoryWrite] = []
    memory = Memory(None, writes)
    for n in range(5):
        await memory.put("n", "k", n)
        await memory.put("n", "other", n)
    await memory.delete("n", "other")
    assert writes == [MemoryWrite("none:n", "k", b"4"), MemoryWrite("none:n", "other", None)]


def test_writes_of_many_threads_are_all_there() -> None:
    writes: list[MemoryWrite] = []
    memory = Memory(None, writes)
    begin = threading.Barrier(8)

    def work(n: int) -> None:
        begin.wait()
        for k in range(200):
            memory.blocking.put("n", str(k), n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(write.key for write in writes) == sorted(map(str, range(200)))
    assert memory.blocking.list("n").keys() == {str(k) for k in range(200)}


async def test_blocking_in_an_async_function_is_refused_with_the_way_out() -> None:
    shelf = Shelf({("none:n", "a"): b"1"})
    memory = Memory(shelf).blocking
    with pytest.raises(RuntimeError, match=r"await ctx\.memory\.get"):
        memory.get("n", "a")
    with pytest.raises(RuntimeError, match=r"await ctx\.memory\.list"):
        memory.list("n")
    assert shelf.asked == []
    assert await asyncio.to_thread(memory.get, "n", "a") == 1
    assert await asyncio.to_thread(memory.list, "n") == {"a": 1}


async def test_a_write_after_the_end_of_the_call_is_said_to_be_lost() -> None:
    writes: list[MemoryWrite] = []
    memory = Memory(None, writes)
    await memory.put("n", "k", 1)
    memory.close()
    for late in (memory.put("n", "k", 2), memory.delete("n", "k")):
        with pytest.raises(RuntimeError, match=r"'none:n', key 'k': the tool call has ended"):
            await late
    assert writes == [MemoryWrite("none:n", "k", b"1")]
    assert await memory.get("n", "k") == 1


LONG = "ж" * (MAX_NAME_BYTES // 2)


@pytest.mark.parametrize("name", ["", 7, None, b"k", "a\0b", "\udc80", LONG + "ж"])
@pytest.mark.parametrize("which", ["namespace", "key"])
async def test_what_is_no_name_is_refused_by_every_verb(name: Any, which: str) -> None:
    memory = Memory(Shelf({}))
    given = (name, "k") if which == "namespace" else ("n", name)
    said = rf"the {which} is a text of 1 to 400 bytes"
    verbs = [memory.get(*given), memory.put(*given, 1), memory.delete(*given)]
    if which == "namespace":
        verbs.append(memory.list(name))
    for verb in verbs:
        with pytest.raises(InvalidInputError, match=said) as caught:
            await verb
        assert caught.value.hint
    with pytest.raises(InvalidInputError, match=said):
        memory.blocking.get(*given)


async def test_names_as_long_as_they_may_be() -> None:
    memory = Memory()
    await memory.put(LONG, LONG, 1)
    assert await memory.list(LONG, LONG) == {LONG: 1}
    with pytest.raises(InvalidInputError, match="the prefix is a text of 0 to 400 bytes"):
        await memory.list("n", LONG + "x")


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "3"])
async def test_what_is_no_limit(limit: Any) -> None:
    with pytest.raises(InvalidInputError, match="limit is a whole number"):
        await Memory().list("n", limit=limit)


def circle() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (object(), "object"),
        ({1: "a"}, "a key in it is not text but int"),
        ({"a": [{2: 3}]}, "a key in it is not text but int"),
        (float("nan"), "JSON"),
        ({"a": {3}}, "set"),
        ("\udc80", "surrogate"),
        (b"x", "bytes"),
        (circle(), "nested deeper"),
    ],
)
async def test_what_is_no_plain_json_is_refused(value: Any, why: str) -> None:
    memory = Memory()
    with pytest.raises(InvalidInputError, match="'notes', key 'k': the value must be plain JSON") as caught:
        await memory.put("notes", "k", value)
    assert why in caught.value.message
    assert "model_dump" in str(caught.value.hint)
    assert await memory.list("notes") == {}


async def test_the_size_of_a_value() -> None:
    memory = Memory()
    await memory.put("n", "k", "x" * (MAX_VALUE_BYTES - 2))
    with pytest.raises(InvalidInputError, match=r"'k': the value has 262,145 bytes as JSON; most is 262,144"):
        await memory.put("n", "k", "x" * (MAX_VALUE_BYTES - 1))
