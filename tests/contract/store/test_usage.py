"""Tenants and users of runs, the usage of model calls, and the definitions of agents."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace

import pytest

from perdure.errors import MemoryChangedError
from perdure.ports.store import AgentRow, Commit, MemoryWrite, Outcome, RunRow, Store
from perdure.ports.usage import UsageFilter, UsageKey, UsageRow, UsageSum, UsageSums

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


async def pay_all(store: Store) -> None:
    for key, agent, model, tenant, context_id, fields in [
        ("1", "a", "big", "acme", "r1", {"cost_usd": 0.5, "input_tokens": 2**40, "milliseconds": 2**40}),
        ("2", "a", "big", "acme", "r1/x", {"cost_usd": 0.25, "root": "r1", "cached_tokens": 7, "status": "failed"}),
        ("3", "b", "big", None, "r2", {"input_tokens": 9, "status": "rejected"}),
        ("4", "b", "small", "x'", "r10", {"cost_usd": 0.0, "output_tokens": 3}),
        ("5", "c", "small", None, "r3", {"output_tokens": 99}),
    ]:
        await pay(store, key, usage(context_id, agent=agent, model=model, tenant=tenant, **fields))


async def test_usage_is_summed_by_each_key(store: Store):
    await pay_all(store)
    total = UsageSum(None, 5, 2, 2**40 + 9, 7, 102, 0.75, 2, 2**40)
    by_agent = await store.sum_usage("agent", UsageFilter())
    assert by_agent.total == total
    assert by_agent.count == 3
    assert by_agent.sums == [
        UsageSum("a", 2, 1, 2**40, 7, 0, 0.75, 0, 2**40),
        UsageSum("b", 2, 1, 9, 0, 3, 0.0, 1, 0),
        UsageSum("c", 1, 0, 0, 0, 99, None, 1, 0),
    ], "an unknown price is none, not 0, and comes last"
    cut = await store.sum_usage("agent", UsageFilter(), limit=1)
    assert ([one.key for one in cut.sums], cut.total, cut.count) == (["a"], total, 3)

    async def keys(key: UsageKey) -> list[str | None]:
        return [one.key for one in (await store.sum_usage(key, UsageFilter())).sums]

    assert await keys("model") == ["openai:big", "openai:small"]
    assert await keys("tenant") == ["acme", "x'", None]
    assert await keys("run") == ["r1", "r10", "r3", "r2"], "a run counts with those below it; then by tokens"
    assert await keys("day") == ["2026-01-01"]
    assert await keys("hour") == ["2026-01-01T00"]


async def test_hours_are_those_of_utc_the_newest_first(database: Database):
    store = await database.open()
    for hour, cost in [("2026-01-01T22", 9.0), ("2026-01-01T23", 0.1), ("2026-01-02T00", None), ("2026-01-02T00", 2.0)]:
        database.clock.hour = hour
        await pay(store, f"{hour}/{cost}", usage("r", cost_usd=cost))
    hours = await store.sum_usage("hour", UsageFilter())
    assert [(one.key, one.calls, one.cost_usd) for one in hours.sums] == [
        *[("2026-01-02T00", 2, 2.0), ("2026-01-01T23", 1, 0.1), ("2026-01-01T22", 1, 9.0)]
    ]
    assert (hours.total.calls, hours.count) == (4, 3)
    cut = await store.sum_usage("hour", UsageFilter(since="2026-01-01T23"), limit=1)
    assert ([one.key for one in cut.sums], cut.total.calls, cut.count) == (["2026-01-02T00"], 3, 2)


async def test_usage_is_summed_of_what_a_filter_has(store: Store):
    await pay_all(store)
    times = [row.created_at for row in reversed(await store.list_usage())]

    async def count(**filters: object) -> str:
        sums = await store.sum_usage("run", UsageFilter(**filters))  # type: ignore[arg-type]
        assert sum(one.calls for one in sums.sums) == sums.total.calls
        return " ".join(sorted(str(one.key) for one in sums.sums))

    assert (await count(agent="a"), await count(model="openai:small")) == ("r1", "r10 r3")
    assert await count(model="small") == ""
    assert (await count(tenant="acme"), await count(tenant=""), await count(tenant="x'")) == ("r1", "r2 r3", "r10")
    assert (await count(since=times[3]), await count(until=times[2])) == ("r10 r3", "r1")
    assert (await count(tenants=["acme", "x'"]), await count(tenants=[])) == ("r1 r10", "")
    assert (await count(agents=["a", "c"]), await count(agents=[])) == ("r1 r3", "")
    assert (await count(sessions=["r1"]), await count(sessions=["r1/x", "r2"]), await count(sessions=[])) == (
        *("r1", "r1 r2", ""),
    )
    assert (await store.sum_usage("run", UsageFilter(sessions=["r1"]))).total.calls == 2, "r10 is not below r1"
    day = await store.sum_usage("day", UsageFilter(), limit=1)
    assert (day.sums[0].calls, day.count) == (5, 1)
    nothing = await store.sum_usage("day", UsageFilter(agent="nobody"))
    assert (nothing.sums, nothing.total, nothing.count) == ([], UsageSum(None), 0)


@pytest.mark.parametrize("name", ["acme\x01east", "acme\0east"])
async def test_the_sums_of_one_tenant_or_agent_with_control_characters(store: Store, name: str):
    await pay(store, "1", usage("r1", tenant=name, agent=name))
    await pay(store, "2", usage("r2", tenant="acme", agent="acme"))
    for only in (UsageFilter(tenants=(name,)), UsageFilter(agents=(name,)), UsageFilter(tenants=[name])):
        assert [one.key for one in (await store.sum_usage("run", only)).sums] == ["r1"]


async def test_a_session_with_nul_is_not_the_session_before_it(store: Store):
    await pay(store, "1", usage("r1"))
    await pay(store, "2", usage("r1/x"))
    await pay(store, "3", usage("r2"))
    assert [one.key for one in (await store.sum_usage("run", UsageFilter(sessions=("r1\0y", "r2")))).sums] == ["r2"]


async def test_a_store_that_is_not_made_yet_has_used_nothing(database: Database):
    store = database.make()
    database.opened.append(store)
    await store.open(create=False)
    assert await store.sum_usage("agent", UsageFilter()) == UsageSums([], UsageSum(None), 0)


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
    assert await store.list_agent_names() == sorted({"a", seen.name}), "each once"


async def test_workers_that_start_at_once_record_the_same_definitions(database: Database):
    stores = [await database.open() for _ in range(4)]
    agents = [definition(str(n), str(n).encode()) for n in range(20)]
    await asyncio.gather(*(store.record_agents(agents[:: (-1) ** n]) for n, store in enumerate(stores)))
    assert [row.name for row in await stores[0].list_agents()] == sorted(str(n) for n in range(20))
