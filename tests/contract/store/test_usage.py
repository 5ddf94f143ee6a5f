"""Tenants and users of runs, the usage of model calls, and the definitions of agents."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace

import pytest

from perdure.errors import MemoryChangedError
from perdure.ports import AgentRow, Commit, MemoryWrite, Outcome, RunRow, Store, UsageRow

from .conftest import Database


def run(context_id: str, tenant: str | None = None, user: str | None = None, asked_at: str = "") -> RunRow:
    return RunRow(context_id, "support", "s", None, "running", asked_at=asked_at, tenant=tenant, user=user)


def usage(context_id: str, **fields: object) -> UsageRow:
    known = {"agent": "support", "purpose": "call", "provider": "openai", "model": "gpt-5", "status": "completed"}
    return UsageRow(context_id, **known | fields)  # type: ignore[arg-type]


async def pay(store: Store, key: str, row: UsageRow, body: bytes = b"{}") -> bytes | None:
    return await store.commit(Commit(outcome=Outcome(key, "model", body), usage=row))


# --- tenants and users


async def test_runs_are_listed_by_tenant_and_user(store: Store):
    for name, tenant, user in [("1", "acme", "ann"), ("2", "acme", "bob"), ("3", None, "ann"), ("4", None, None)]:
        await store.commit(Commit(run=run(name, tenant, user)))

    async def ids(**filters: str) -> list[str]:
        return [row.context_id for row in await store.list_runs(**filters)]  # type: ignore[arg-type]

    assert await ids(tenant="acme") == ["2", "1"]
    assert await ids(user="ann") == ["3", "1"]
    assert await ids(tenant="acme", user="ann", agent="support", status="running") == ["1"]
    assert await ids(tenant="acm") == []
    assert await ids() == ["4", "3", "2", "1"]
    row = await store.get_run("1")
    assert row is not None
    assert (row.tenant, row.user) == ("acme", "ann")


async def test_the_tenant_of_a_run_stays(store: Store):
    await store.commit(Commit(run=run("c")))
    await store.commit(Commit(run=run("c", "acme", "ann")))
    await store.commit(Commit(run=run("c", "evil", None)))
    await store.commit(Commit(run=run("c")))
    row = await store.get_run("c")
    assert row is not None
    assert (row.tenant, row.user) == ("acme", "ann")


async def test_a_row_that_is_too_late_gives_no_tenant(store: Store):
    await store.commit(Commit(run=run("c", asked_at="2026-01-02")))
    await store.commit(Commit(run=run("c", "acme", asked_at="2026-01-01")))
    row = await store.get_run("c")
    assert row is not None
    assert row.tenant is None


async def test_labels_of_any_characters(store: Store):
    for name in ("O'Brien; DROP TABLE runs", "ünïcode \u2603 " * 10, "%", "a" * 200):
        await store.commit(Commit(run=run(name, name, name)))
        assert [row.context_id for row in await store.list_runs(tenant=name, user=name)] == [name]


# --- usage


async def test_the_usage_of_an_outcome_is_recorded_once(store: Store):
    full = usage(
        "c",
        purpose="compact",
        status="rejected",
        requests=3,
        input_tokens=2**40,
        output_tokens=5,
        cached_tokens=7,
        cache_write_tokens=2,
        reasoning_tokens=4,
        cost_usd=0.1,
        milliseconds=1500,
        task_id="t",
        root="top",
        tenant="acme",
        user="ann",
    )
    assert await pay(store, "k", full, b"first") == b"first"
    assert await pay(store, "k", usage("c", input_tokens=9), b"second") == b"first"
    [row] = await store.list_usage()
    assert replace(row, created_at="") == replace(full, key="k")
    assert row.created_at.startswith("2026-01-01T00:00:00")
    await pay(store, "plain", usage("c"))
    assert replace((await store.list_usage())[0], created_at="") == replace(usage("c"), key="plain")


async def test_usage_needs_an_outcome(store: Store):
    await store.commit(Commit(run=run("c"), usage=usage("c")))
    assert await store.list_usage() == []


async def test_a_commit_that_fails_leaves_no_usage(store: Store):
    changed = MemoryWrite("n", "k", b"1", checked=True, before=b"0")
    with pytest.raises(MemoryChangedError):
        await store.commit(Commit(outcome=Outcome("k", "model", b"{}"), usage=usage("c"), memory=[changed]))
    assert await store.list_usage() == []


async def test_usage_is_listed_by_tenant_agent_and_time(store: Store):
    for key, agent, tenant in [("1", "a", "acme"), ("2", "b", "acme"), ("3", "a", None)]:
        await pay(store, key, usage("c", agent=agent, tenant=tenant))
    rows = await store.list_usage()

    async def keys(**filters: object) -> list[str]:
        return [row.key for row in await store.list_usage(**filters)]  # type: ignore[arg-type]

    assert await keys() == ["3", "2", "1"]
    assert await keys(limit=1) == ["3"]
    assert await keys(tenant="acme") == ["2", "1"]
    assert await keys(agent="a", tenant="acme") == ["1"]
    assert await keys(since=rows[1].created_at) == ["3", "2"]
    assert await keys(agent="nobody") == []


async def test_two_workers_that_record_one_outcome_leave_one_row(database: Database):
    stores = [await database.open() for _ in range(2)]
    for number in range(10):
        key = str(number)
        recorded = await asyncio.gather(
            *(pay(store, key, usage("c", output_tokens=n), str(n).encode()) for n, store in enumerate(stores))
        )
        assert recorded[0] == recorded[1]
        [row] = await stores[0].list_usage(limit=1)
        assert (row.key, str(row.output_tokens).encode()) == (key, recorded[0]), "the usage is that of the outcome"


# --- agents


def definition(name: str, body: bytes) -> AgentRow:
    return AgentRow(hashlib.sha256(body).hexdigest(), name, body)


async def test_definitions_are_recorded_once_and_seen_again(store: Store):
    old, new, other = (definition(name, body) for name, body in [("b", b"old"), ("b", b"new"), ("a", b"other")])
    await store.record_agents([old, other, old])
    await store.record_agents([new])
    rows = await store.list_agents()
    assert [(row.name, row.body) for row in rows] == [("a", b"other"), ("b", b"new"), ("b", b"old")]
    assert [row.hash for row in rows] == [other.hash, new.hash, old.hash]
    await store.record_agents([old])
    [_, seen, before] = await store.list_agents()
    assert (seen.body, before.body) == (b"old", b"new"), "the latest seen first"
    assert seen.created_at < before.created_at < seen.seen_at
    await store.record_agents([])
    assert len(await store.list_agents()) == 3
    named = await store.list_agents(seen.name)
    assert {row.name for row in named} == {seen.name}
    assert await store.list_agents("no'such") == []


async def test_workers_that_start_at_once_record_the_same_definitions(database: Database):
    stores = [await database.open() for _ in range(4)]
    agents = [definition(str(n), str(n).encode()) for n in range(20)]
    await asyncio.gather(*(store.record_agents(agents[:: (-1) ** n]) for n, store in enumerate(stores)))
    assert [row.name for row in await stores[0].list_agents()] == sorted(str(n) for n in range(20))
