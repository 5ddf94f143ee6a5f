"""What every store promises about the list of runs as a console shows it: what each waits for, and runs of a period."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perdure.ports.run_lists import RunFilter
from perdure.ports.store import Commit, EventBatch, NewEvent, RunRow, Store, build_batch_token
from perdure.ports.waits import RunWaits
from perdure.types.events import ApprovalRequested, LimitReached, MessageInjected, ModelStarted, QuestionAsked, RunEvent
from perdure.types.subagents import Lineage, PathStep

T1, T2, T3 = (f"2026-01-01T00:00:0{n}.000000+00:00" for n in (1, 2, 3))


def requested(call_id: str, at: str) -> NewEvent:
    return NewEvent(ApprovalRequested(call_id=call_id, name="refund", hash=f"h-{call_id}", at=at, expires_in=60))


async def add_run(store: Store, name: str, *events: NewEvent, asked_at: str = T1) -> None:
    """A run whose last call has recorded these events."""
    lineage = Lineage(root=name.partition("/")[0], agent="support", path=(PathStep(agent="helper", call_id="c"),))
    token = build_batch_token(asked_at)
    batch = EventBatch(name, events, token, True, lineage if "/" in name else None, "support")
    await store.commit(Commit(run=RunRow(name, "support", "s", None, "waiting", asked_at=asked_at), events=batch))


async def test_what_each_run_and_the_runs_below_it_wait_for(store: Store) -> None:
    asked = NewEvent(QuestionAsked(call_id="q", name="ask", question="Which?", hash="h-q", at=T2))
    await add_run(store, "a", requested("second", T3), asked)
    await add_run(store, "a/1", requested("below", T1))
    await add_run(store, "a/1/2", requested("deep", T2))
    for name in ("a0", "a-1", "ab", "A"):  # their ids are beside those of the runs below
        await add_run(store, name, requested("other", T1))
    await add_run(store, "idle", NewEvent(LimitReached()))
    found = await store.list_run_waits(["a", "a/1", "idle", "unknown", "a"])
    calls = {name: [(wait.context_id, wait.call_id) for wait in run.waits] for name, run in found.items()}
    assert calls == {
        "a": [("a/1", "below"), ("a", "q"), ("a/1/2", "deep"), ("a", "second")],
        "a/1": [("a/1", "below"), ("a/1/2", "deep")],
        "idle": [],
        "unknown": [],
    }
    [below, question, *_] = found["a"].waits
    assert (below.kind, below.tool, below.root, below.body) == ("approval", "refund", "a", None)
    assert below.expires_at == "2026-01-01T00:01:01.000000+00:00"
    assert (question.kind, question.hash, question.expires_at) == ("question", "h-q", None)
    assert [wait.call_id for wait in (await store.list_run_waits(["a"], limit=2))["a"].waits] == ["below", "q"]
    assert await store.list_run_waits([]) == {}
    names = [f"n{number}" for number in range(600)]
    assert await store.list_run_waits([*names, "ab"]) == {name: RunWaits() for name in names} | {
        "ab": (await store.list_run_waits(["ab"]))["ab"]
    }


async def test_whether_a_call_has_begun_since_the_row_of_its_run(store: Store) -> None:
    """Then the row's status is from before it."""
    await add_run(store, "c", asked_at=T1)

    async def is_at_work() -> bool:
        return (await store.list_run_waits(["c"]))["c"].is_at_work

    assert not await is_at_work()
    started = EventBatch("c", [NewEvent(ModelStarted(iteration=1))], build_batch_token(T1, 2), advances=True)
    assert not await store.append(started), "an attempt of the call whose outcome is recorded is late"
    assert not await is_at_work()
    assert await store.append(EventBatch("c", started.events, build_batch_token(T2, 1), advances=True))
    assert await is_at_work()
    await add_run(store, "c", NewEvent(LimitReached()), asked_at=T2)
    assert not await is_at_work()


async def test_runs_of_a_period(store: Store) -> None:
    for name in ("1", "2", "3"):
        await store.commit(Commit(run=RunRow(name, "support", "s", None, "running")))
    times = {row.context_id: row.created_at for row in await store.list_runs()}

    async def ids(**filters: str) -> list[str]:
        return [row.context_id for row in await store.list_runs(**filters)]  # type: ignore[arg-type]

    assert await ids(created_from=times["2"]) == ["3", "2"]
    assert await ids(created_before=times["2"]) == ["1"]
    assert await ids(created_from=times["2"], created_before=times["3"], agent="support") == ["2"]
    assert await ids(created_from=times["3"], created_before=times["3"]) == []
    page = await store.list_runs(created_from=times["1"], after=(times["3"], "3"), limit=1)
    assert [row.context_id for row in page] == ["2"]


async def test_the_rows_of_some_runs(store: Store) -> None:
    await add_run(store, "a", asked_at=T1)
    await add_run(store, "a/1", asked_at=T2)
    found = await store.get_runs(["a/1", "a", "unknown", "a", *(f"n{number}" for number in range(600))])
    assert {name: (row.context_id, row.root, row.asked_at) for name, row in found.items()} == {
        "a": ("a", None, T1),
        "a/1": ("a/1", "a", T2),
    }
    assert await store.get_runs([]) == {}


async def add_failed(store: Store, name: str, first: str | None, type: str | None = None, error: str = "") -> None:
    row = RunRow(name, "support", "s", None, "failed" if type else "running", first_message=first, error_type=type)
    await store.commit(Commit(run=replace(row, error=error or None)))


async def search(store: Store, search: str | None = None, **filters: Any) -> list[str]:
    rows, after = await store.search_runs(RunFilter(search=search, **filters))
    assert after is None
    return [row.context_id for row in rows]


async def test_runs_are_found_by_id_by_words_and_by_error(store: Store) -> None:
    await add_failed(store, "inv-1", "Pay INV-8 to Müller", "ProviderAuthError", "401: the key is wrong")
    await add_failed(store, "inv-2", "50% off_ers", "ToolError", "ProviderAuthError said no")
    await add_failed(store, "other", None)
    assert await search(store) == ["other", "inv-2", "inv-1"]
    assert await search(store, "pay") == ["inv-1"]
    assert await search(store, "MÜLLER Pay") == [], "letters beyond ASCII in their own case"
    assert await search(store, "Müller  pay") == ["inv-1"]
    assert await search(store, "inv-") == ["inv-2", "inv-1"]
    assert await search(store, "50%") == ["inv-2"]
    assert await search(store, "f_e") == ["inv-2"]
    assert await search(store, "5_%") == []
    assert await search(store, "key wrong") == ["inv-1"]
    assert await search(store, "\0 \\ '\"") == []
    assert await search(store, error="ProviderAuthError") == ["inv-1"]
    assert await search(store, error="ProviderAuth") == []
    [row] = (await store.search_runs(RunFilter(error="ToolError")))[0]
    assert (row.first_message, row.error_type, row.error) == ("50% off_ers", "ToolError", "ProviderAuthError said no")
    assert await store.get_run("inv-2") == row
    await add_failed(store, "inv-2", "Another message")
    again = await store.get_run("inv-2")
    assert again is not None
    assert (again.first_message, again.error_type) == ("50% off_ers", None), "the first one stays, the error does not"


async def test_a_search_is_bounded_and_continues(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.store.runs.SCANNED_RUNS", 4)
    for number in range(10):
        await add_failed(store, f"r{number}", "wanted" if number in (0, 1, 8) else "other")
    pages, after = [], None
    while True:
        rows, after = await store.search_runs(RunFilter(search="wanted"), after=after, limit=2)
        pages.append([row.context_id for row in rows])
        if after is None:
            break
    assert pages == [["r8"], [], ["r1", "r0"], []]
    first, after = await store.search_runs(RunFilter(), limit=6)
    rest, end = await store.search_runs(RunFilter(), after=after, limit=6)
    assert ([row.context_id for row in (*first, *rest)], end) == ([f"r{n}" for n in reversed(range(10))], None)


async def test_failures_are_counted_by_their_error(store: Store) -> None:
    for name, error in (("a", "ToolError"), ("b", "ToolError"), ("c", "ProviderAuthError"), ("d", None)):
        await add_failed(store, name, "Go", error)
    row = RunRow("e/1", "helper", "s", None, "failed", tenant="acme", error_type="ToolError")
    await store.commit(Commit(run=row))

    async def count(since: str = "", **scope: Any) -> list[tuple[str, int]]:
        return [(one.error_type, one.runs) for one in await store.count_failures(since, **scope)]

    assert await count() == [("ToolError", 3), ("ProviderAuthError", 1)]
    assert await count(tenants=["acme"]) == [("ToolError", 1)]
    assert await count(tenants=[]) == []
    assert await count(agents=["support"]) == [("ToolError", 2), ("ProviderAuthError", 1)]
    assert await count(sessions=["e", "c", "x\0"]) == [("ProviderAuthError", 1), ("ToolError", 1)]
    last = (await store.get_run("e/1")).updated_at  # type: ignore[union-attr]  # it was written
    assert await count(last) == [("ToolError", 1)]
    assert await search(store, error="ToolError", updated_from=last) == ["e/1"]


async def test_the_first_message_of_a_run_without_a_row(store: Store) -> None:
    long = f"Pay\n {'x' * 300}"
    for name, events in (
        ("a", [RunEvent(state="started"), MessageInjected(content=long), MessageInjected(content="later")]),
        ("b", [RunEvent(state="started")]),
    ):
        await store.append(EventBatch(name, [NewEvent(event) for event in events], build_batch_token(T1, 1)))
    assert await store.find_first_messages(["a", "b", "unknown"]) == {"a": f"Pay {'x' * 195}…"}
    assert await store.find_first_messages([]) == {}
