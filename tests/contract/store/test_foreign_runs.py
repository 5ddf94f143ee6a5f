"""What every store promises of the rows of others: a run of another tenant, user or root writes nothing into them, and
nothing is written under an id that was deleted for good."""

from __future__ import annotations

import pytest

from perdure.errors import RunIdError
from perdure.ports.store import Commit, EventBatch, NewEvent, Outcome, RunRow, Store, TurnRow, build_batch_token
from perdure.types.events import LimitReached, RunEvent
from perdure.types.subagents import Lineage, PathStep

T1, T2 = (f"2026-01-01T00:00:0{n}.000000+00:00" for n in (1, 2))


def row(context_id: str = "c", tenant: str | None = "acme", user: str | None = "ann", asked_at: str = T1) -> RunRow:
    return RunRow(context_id, "support", "s", None, "running", asked_at=asked_at, tenant=tenant, user=user)


def batch(context_id: str, root: str | None = None, at: str = T1) -> EventBatch:
    path = (PathStep(agent="support", call_id="x"),)
    lineage = None if root is None else Lineage(root=root, agent="a", path=path)
    return EventBatch(context_id, [NewEvent(LimitReached())], build_batch_token(at), lineage=lineage)


@pytest.mark.parametrize(
    ("tenant", "user"), [("beta", "ann"), (None, "ann"), ("acme", "bob"), ("acme", None), (None, None)]
)
async def test_a_commit_of_another_tenant_or_user_writes_nothing(store: Store, tenant: str | None, user: str | None):
    await store.commit(Commit(run=row(), events=batch("c")))
    before = await store.get_run("c"), await store.read_events("c")
    outcome, turn = Outcome("k", "model", b"{}"), TurnRow("c", "t", "running", asked_at=T2)
    foreign = Commit(
        run=row(tenant=tenant, user=user, asked_at=T2), turn=turn, outcome=outcome, events=batch("c", at=T2)
    )
    with pytest.raises(RunIdError, match="this id cannot be used"):
        await store.commit(foreign)
    assert (await store.get_run("c"), await store.read_events("c")) == before
    assert (await store.get_turn("c", "t"), await store.find_outcomes(["k"])) == (None, {})
    await store.commit(Commit(run=row(asked_at=T2)))


async def test_a_row_without_labels_gets_none_of_another(store: Store):
    await store.commit(Commit(run=row(tenant=None, user=None)))
    with pytest.raises(RunIdError):
        await store.commit(Commit(run=row(asked_at=T2)))


async def test_events_of_another_root_are_refused(store: Store):
    await store.append(batch("a/1-2", root="a"))
    await store.append(batch("own"))
    for context_id in ("a/1-2", "own"):
        with pytest.raises(RunIdError):
            await store.append(batch(context_id, root="b", at=T2))
        with pytest.raises(RunIdError):
            await store.claim("k", "o", events=batch(context_id, root="b", at=T2))
        with pytest.raises(RunIdError):
            await store.commit(Commit(events=batch(context_id, root="b", at=T2)))
        assert len(await store.read_events(context_id)) == 1
    assert await store.read_events("b") == []
    assert await store.find_outcomes(["k"]) == {}


async def test_an_id_that_was_deleted_for_good_is_not_given_again(store: Store):
    for name in ("gone", "old"):
        await store.commit(Commit(run=row(name), events=batch(name)))
        await store.append(batch(f"{name}/1-2", root=name))
        assert await store.delete_tree(await store.read_tree(name), "2026-01-01", for_good=name == "gone")
    assert await store.find_deleted(["gone", "gone/1-2", "old", "old/1-2", "other"]) == {"gone", "gone/1-2"}
    for late in (batch("gone", at=T2), batch("gone/1-2", root="gone", at=T2), batch("gone/new-3", root="gone", at=T2)):
        with pytest.raises(RunIdError):
            await store.append(late)
        with pytest.raises(RunIdError):
            await store.commit(Commit(run=row(late.context_id), events=late))
    ended = EventBatch("gone", [NewEvent(RunEvent(state="terminated"))])
    with pytest.raises(RunIdError):  # of a client that has seen its end
        await store.append(ended)
    assert (await store.get_run("gone"), await store.read_events("gone")) == (None, [])
    await store.commit(Commit(run=row("old", tenant="beta"), events=batch("old")))
