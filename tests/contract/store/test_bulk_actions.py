"""What every store promises about bulk actions and their runs."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from perdure.ports.bulk_actions import BulkRow, BulkRunRow
from perdure.ports.store import Commit, RunRow, Store

FAR = "9999-01-01T00:00:00.000000+00:00"


def bulk(id: str = "b1", total: int = 0) -> BulkRow:
    given = ("resume", '{"error": "ä"}', "acme", None, "ana", "token:1", "10.0.0.1", total, 0.5, 3)
    return BulkRow(id, *given)  # type: ignore[arg-type]  # in their order


def runs(*names: str) -> list[BulkRunRow]:
    return [BulkRunRow(name, number, f"e-{name}", "support", None, "zoë") for number, name in enumerate(names)]


async def test_a_bulk_action_from_its_making_to_its_end(store: Store) -> None:
    names = [f"run '{number}' ü/{number}" for number in range(1200)]
    refused = BulkRunRow("no", 1200, "", "support", "acme", outcome="refused", detail="may not", done_at="t")
    await store.create_bulk(bulk(total=1201), [*runs(*names), refused])
    row = await store.get_bulk("b1")
    assert row is not None
    assert replace(row, created_at="") == bulk(total=1201)
    await store.create_bulk(replace(bulk(), by="eve"), runs("other"))
    assert (await store.get_bulk("b1")) == row, "the same request again"
    assert await store.get_bulk("b2") is None
    listed = await store.list_bulk_runs("b1", limit=2000)
    assert [run.context_id for run in listed[:1200]] == names
    assert listed[7] == runs(*names)[7]
    assert [run for run in listed if run.outcome == "refused"] == [refused]
    assert [run.position for run in await store.list_bulk_runs("b1", after=1198)] == [1199, 1200]
    assert await store.begin_bulk_run("b1", names[0]) == 1
    assert await store.begin_bulk_run("b1", names[0]) == 2, "after a worker was lost"
    assert await store.settle_bulk_run("b1", names[0], "failed", "ProviderAuthError: no")
    assert not await store.settle_bulk_run("b1", names[0], "acted"), "the first is recorded"
    assert await store.begin_bulk_run("b1", names[0]) is None
    assert await store.begin_bulk_run("b1", "unknown") is None
    assert (await store.count_bulk_runs(["b1", "b2"])) == {"b1": {"pending": 1199, "failed": 1, "refused": 1}, "b2": {}}
    [failed] = await store.list_bulk_runs("b1", outcome="failed")
    assert (failed.detail, failed.attempts, failed.done_at is not None) == ("ProviderAuthError: no", 2, True)
    assert await store.end_bulk("b1", "stopped", "bea")
    assert not await store.end_bulk("b1", "completed")
    assert await store.begin_bulk_run("b1", names[1]) is None, "nothing begins behind the end"
    ended = await store.get_bulk("b1")
    assert ended is not None
    assert (ended.state, ended.stopped_by, ended.ended_at is not None) == ("stopped", "bea", True)


async def test_the_same_request_twice_at_once_has_the_runs_of_one(store: Store) -> None:
    chosen = {"ana": [f"a{number}" for number in range(1100)], "bea": ["b1", "b2"]}
    await asyncio.gather(*(store.create_bulk(replace(bulk(), by=by), runs(*names)) for by, names in chosen.items()))
    row = await store.get_bulk("b1")
    assert row is not None
    assert [run.context_id for run in await store.list_bulk_runs("b1", limit=2000)] == chosen[row.by]


async def test_one_of_two_workers_records_what_became_of_a_run(store: Store) -> None:
    await store.create_bulk(bulk(), runs("a"))
    assert sorted(
        map(int, filter(None, await asyncio.gather(*(store.begin_bulk_run("b1", "a") for _ in range(3)))))
    ) == [*(1, 2, 3)]
    settled = await asyncio.gather(*(store.settle_bulk_run("b1", "a", "acted") for _ in range(3)))
    assert sorted(settled) == [False, False, True]


async def test_lists_and_deletion(store: Store) -> None:
    for number in range(3):
        await store.create_bulk(bulk(f"b{number}"), runs("c", "d"))
    listed = await store.list_bulks()
    assert [row.id for row in listed] == ["b2", "b1", "b0"]
    assert [row.id for row in await store.list_bulks(after=(listed[0].created_at, "b2"), limit=1)] == ["b1"]
    await store.end_bulk("b1", "completed")
    assert await store.delete_old_bulks(listed[2].created_at) == 0
    assert await store.delete_old_bulks(FAR) == 3
    assert await store.list_bulks() == []
    assert await store.list_bulk_runs("b1") == []


async def test_a_run_that_is_deleted_takes_its_rows_along(store: Store) -> None:
    await store.create_bulk(bulk(), runs("c", "d"))
    await store.commit(Commit(run=RunRow("c", "support", "s", None, "failed")))
    assert await store.delete_tree(await store.read_tree("c"), "2026-01-01")
    assert [run.context_id for run in await store.list_bulk_runs("b1")] == ["d"]
