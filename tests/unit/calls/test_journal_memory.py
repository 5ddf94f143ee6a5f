"""The journal stage and memory: what a call wrote is part of its outcome, in one transaction with it, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from perdure.calls.journal import JournalStage
from perdure.errors import ProviderServerError
from perdure.ports.store import Commit, MemoryWrite
from perdure.testing.store import MemoryStore
from perdure.types.wire import ToolOutput
from tests.unit.calls.build import Inner, model_call, tool_call

WRITES = [MemoryWrite("n", "a", b"1"), MemoryWrite("n", "b", None)]


async def recalled(store: MemoryStore) -> dict[str, bytes]:
    return await store.recall_all("n")


def writing(answer: Any, writes: Sequence[MemoryWrite] = WRITES) -> Any:
    """An innermost call that writes into memory before it answers."""

    async def inner(call: Any) -> Any:
        call.recording.memory_writes.extend(writes)
        return await Inner(answer)(call)

    return inner


@pytest.mark.parametrize("kind", ["model", "tool"])
async def test_what_a_call_wrote_is_kept_with_its_outcome_and_once(store: MemoryStore, kind: str) -> None:
    await store.commit(Commit(memory=[MemoryWrite("n", "b", b"2")]))
    stage = JournalStage(store)

    def attempt(owner: str) -> Any:
        return (
            stage.step(model_call(owner=owner), writing("hi"))
            if kind == "model"
            else stage.tool(tool_call(owner=owner), writing("42"))
        )

    await attempt("run/2/1")
    assert await recalled(store) == {"a": b"1"}
    assert len(store.commits) == 2
    await store.commit(Commit(memory=[MemoryWrite("n", "a", b"9")]))  # another conversation goes on
    await attempt("run/2/2")
    assert await recalled(store) == {"a": b"9"}


@pytest.mark.parametrize("status", ["done", "cancelled"])
async def test_what_a_failed_tool_wrote_is_dropped(store: MemoryStore, status: Any) -> None:
    call = tool_call()
    failed = ToolOutput(key=call.key, content="ValueError: no", is_error=True, status=status)
    await JournalStage(store).tool(call, writing(failed))
    assert await recalled(store) == {}


async def test_what_a_failed_model_call_wrote_is_dropped(store: MemoryStore) -> None:
    stage = JournalStage(store)
    with pytest.raises(ProviderServerError):
        await stage.step(model_call(), writing(ProviderServerError("down")))
    assert await recalled(store) == {}
    await stage.step(model_call(), writing("hi", [MemoryWrite("n", "a", b"7")]))
    assert await recalled(store) == {"a": b"7"}


@pytest.mark.parametrize("kind", ["model", "tool"])
async def test_a_late_writer_changes_nothing(store: MemoryStore, kind: str) -> None:
    stage, gate = JournalStage(store), asyncio.Event()
    entered = asyncio.Event()

    async def slow(call: Any) -> Any:
        call.recording.memory_writes.append(MemoryWrite("n", "a", b"late"))
        entered.set()
        await gate.wait()
        return await Inner("late")(call)

    call = model_call if kind == "model" else tool_call
    options: dict[str, Any] = {} if kind == "model" else {"idempotent": True}
    act: Any = stage.step if kind == "model" else stage.tool
    late = asyncio.ensure_future(act(call(owner="run/2/1", **options), slow))
    await entered.wait()
    await act(call(owner="run/2/2", **options), writing("quick"))
    gate.set()
    await late
    assert await recalled(store) == {"a": b"1"}


async def test_what_a_tool_writes_after_its_end_is_not_in_the_transaction() -> None:
    """The commit has its own copy: a thread that goes on cannot change it while the store takes it."""

    class Held(MemoryStore):
        """Its commits wait for ``go``."""

        async def commit(self, commit: Commit) -> bytes | None:
            asked.set()
            await go.wait()
            return await super().commit(commit)

    asked, go = asyncio.Event(), asyncio.Event()
    store = Held()
    await store.open()
    call = tool_call()
    running = asyncio.ensure_future(JournalStage(store).tool(call, writing("42")))
    await asked.wait()
    call.recording.memory_writes.append(MemoryWrite("n", "late", b"1"))
    go.set()
    await running
    assert await recalled(store) == {"a": b"1"}
