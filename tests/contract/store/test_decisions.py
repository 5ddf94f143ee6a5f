"""What every store promises about decisions that can be taken back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from perdure.ports.decisions import DecisionRow
from perdure.ports.store import Commit, RunRow, Store
from tests.contract.store.conftest import Database

FAR = "9999-01-01T00:00:00.000000+00:00"


def decision(id: str = "d1", call_id: str = "a", context_id: str = "c", by: str = "ana") -> DecisionRow:
    return DecisionRow(
        *(id, context_id, call_id, f"h-{call_id}", "support", "refund", "acme", "weber", by),
        *("token:1", "10.0.0.1", b'{"decision": "deny", "comment": "\\u00fc"}'),
    )


async def test_a_decision_from_its_making_to_its_end(store: Store) -> None:
    assert not await store.has_open_decisions()
    row = await store.defer_decision(decision(), 0)
    assert replace(row, created_at="", due_at="") == decision()
    assert row.created_at == row.due_at
    assert await store.has_open_decisions()
    [taken] = await store.take_decisions("me", lease_seconds=60)
    assert (taken.owner, taken.attempts, taken.body) == ("me", 1, row.body)
    assert await store.take_decisions("other", lease_seconds=60) == []
    assert not await store.settle_decision("other", taken, b"no")
    assert await store.settle_decision("me", taken, b"{}")
    assert not await store.settle_decision("me", taken, b"twice")
    [known] = await store.list_decisions(["c", "x"])
    assert (known.answer, known.note) == (b"{}", None)
    assert not await store.has_open_decisions()
    assert await store.take_decisions("me", lease_seconds=0) == []
    assert await store.delete_settled_decisions(known.due_at) == 0
    assert await store.delete_settled_decisions(FAR) == 1
    assert await store.list_decisions(["c"]) == []


async def test_the_first_decision_stands_until_it_has_an_answer(store: Store) -> None:
    await store.defer_decision(decision(), 0)
    assert (await store.defer_decision(decision("d2", by="bea"), 0)).by == "ana"
    assert (await store.defer_decision(decision("d3", call_id="b", by="bea"), 0)).by == "bea", "of another call"
    taken = await store.take_decisions("me", lease_seconds=60)
    assert [row.call_id for row in taken] == ["a", "b"]
    assert (await store.defer_decision(decision("d4", by="bea"), 0)).by == "ana"
    await store.settle_decision("me", taken[0], b"{}")
    again = await store.defer_decision(decision("d5", by="bea"), 0)
    assert (again.id, again.answer, again.attempts, again.owner) == ("d5", None, 0, "")


async def test_it_is_taken_when_it_is_due_and_again_after_its_lease(store: Store) -> None:
    await store.defer_decision(decision(), 3600)
    assert await store.take_decisions("me", lease_seconds=60) == []
    assert await store.take_back_decision("c", "a", "d1")
    await store.defer_decision(decision(), 0)
    [lost] = await store.take_decisions("killed", lease_seconds=0)
    [taken] = await store.take_decisions("next", lease_seconds=60)
    assert (taken.owner, taken.attempts) == ("next", 2)
    assert not await store.settle_decision("killed", lost, b"late")
    assert not await store.take_back_decision("c", "a", "d1"), "an attempt may have reached the run"


async def test_what_was_not_sent_can_be_taken_back_again(store: Store) -> None:
    for has_begun in (True, False):
        await store.defer_decision(decision(), 0)
        [taken] = await store.take_decisions("me", lease_seconds=60)
        assert not await store.postpone_decision("other", taken, "no", 0, has_begun=False)
        assert await store.postpone_decision("me", taken, "no worker", 0, has_begun=has_begun)
        [known] = await store.list_decisions(["c"])
        assert (known.note, known.owner) == ("no worker", "me" if has_begun else "")
        assert await store.take_back_decision("c", "a", "d1") is not has_begun
        for row in await store.take_decisions("me", lease_seconds=60):
            await store.settle_decision("me", row, b"{}")


async def test_of_those_who_take_it_back_and_who_send_it_one_gets_it(database: Database) -> None:
    stores = [await database.open() for _ in range(2)]
    for turn in range(8):
        row = await stores[0].defer_decision(decision(f"d{turn}"), 0)

        async def send(at: int) -> bool:
            return bool(await stores[at].take_decisions(f"sender-{at}", lease_seconds=60))

        async def take_back(at: int, id: str = row.id) -> bool:
            return await stores[at].take_back_decision("c", "a", id)

        done = await asyncio.gather(take_back(0), send(1), take_back(1), send(0), take_back(0))
        assert sum(done) == 1
        for left in await stores[0].list_decisions(["c"]):
            assert await stores[0].settle_decision(left.owner, left, b"{}")


async def test_of_many_decisions_on_a_call_at_once_one_stands(database: Database) -> None:
    stores = [await database.open() for _ in range(2)]
    rows = await asyncio.gather(*(stores[n % 2].defer_decision(decision(f"d{n}", by=f"b{n}"), 0) for n in range(12)))
    assert len({row.id for row in rows}) == 1


async def test_it_goes_with_its_run(store: Store) -> None:
    await store.commit(Commit(run=RunRow("c", "support", "s", None, "completed")))
    await store.defer_decision(decision(), 0)
    await store.defer_decision(decision(context_id="other"), 0)
    tree = await store.read_tree("c")
    assert await store.delete_tree(tree, "2026-01-01")
    assert [row.context_id for row in await store.list_decisions(["c", "other"])] == ["other"]
