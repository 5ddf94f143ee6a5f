"""What every store promises about waits, outbox, audit, idempotency keys and the keys of bodies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import InvalidInputError, StoreError
from perdure.ports.audit import AuditRow
from perdure.ports.failures import FailureFilter
from perdure.ports.idempotency import IdempotencyClaim
from perdure.ports.outbox import OutboxRow, WriteOptions
from perdure.ports.store import (
    Blob,
    Commit,
    EventBatch,
    MemoryWrite,
    NewEvent,
    Node,
    Outcome,
    RunRow,
    Store,
    TurnRow,
    build_batch_token,
)
from perdure.ports.waits import WaitGroup, WaitOrder, WaitRow
from perdure.store.postgres import PostgresStore
from perdure.store.sqlite import SqliteStore
from perdure.testing.store import MemoryStore
from perdure.types.events import (
    ApprovalDecided,
    ApprovalRequested,
    ErrorEvent,
    Event,
    LimitReached,
    ModelCompleted,
    ModelDelta,
    ModelStarted,
    QuestionAnswered,
    QuestionAsked,
    RunEvent,
    ToolCompleted,
    TurnEvent,
)
from perdure.types.messages import clean_text
from perdure.types.subagents import Lineage, PathStep
from tests.contract.store.conftest import Database
from tests.contract.store.reference import ReferenceStore
from tests.contract.store.test_events_processes import python
from tests.support.postgres import Databases
from tests.support.wait import eventually

T1, T2, T3 = (f"2026-01-01T00:00:0{n}.000000+00:00" for n in (1, 2, 3))
CHILD = Lineage(root="c", path=(PathStep(agent="researcher", call_id="call-a"),), agent="support")


def requested(call_id: str = "a", at: str = T1, expires_in: float | None = None) -> ApprovalRequested:
    return ApprovalRequested(
        call_id=call_id, name="refund", arguments={"amount": 3}, hash=f"h-{call_id}", at=at, expires_in=expires_in
    )


def asked(call_id: str = "a", hash: str = "q1") -> QuestionAsked:
    return QuestionAsked(call_id=call_id, name="ask", question="Which?", form={"type": "string"}, hash=hash, at=T2)


def batch(
    *events: Event | NewEvent, of: str = "c", token: str = "", scheduled: str = "", agent: str = "support"
) -> EventBatch:
    new = [event if isinstance(event, NewEvent) else NewEvent(event) for event in events]
    lineage = CHILD if of != "c" else None
    return EventBatch(of, new, token, advances=bool(token), lineage=lineage, agent=agent, scheduled=scheduled)


async def read_names(store: Store) -> list[tuple[str, str]]:
    return [(row.context_id, row.call_id) for row in await store.list_waits()]


# --- waits ---------------------------------------------------------------------------------------------------------


async def test_a_wait_has_what_an_inbox_shows(store: Store):
    await store.append(batch(LimitReached(), requested(expires_in=60)))
    [wait] = await store.list_waits()
    until = "2026-01-01T00:01:01.000000+00:00"
    assert replace(wait, body=None) == WaitRow("c", "a", "c", "approval", "support", "refund", "h-a", T1, until)
    assert json.loads(wait.body or b"")["arguments"] == {"amount": 3}


async def test_a_wait_without_end_and_one_that_ends_past_every_calendar(store: Store):
    await store.append(batch(requested("a"), requested("b", expires_in=1e13)))
    assert [row.expires_at for row in await store.list_waits()] == [None, None]


@pytest.mark.parametrize(
    "event",
    [
        ApprovalDecided(call_id="a", name="refund", decision="approved"),
        ToolCompleted(call_id="a", name="refund"),
        QuestionAnswered(call_id="a", name="refund"),
    ],
    ids=lambda event: event.type,
)
async def test_what_decides_a_call_ends_its_wait(store: Store, event: Event):
    await store.append(batch(requested("a"), requested("b")))
    await store.append(batch(requested("a"), of="other"))
    await store.append(batch(event))
    assert await read_names(store) == [("c", "b"), ("other", "a")]


@pytest.mark.parametrize(
    "event",
    [
        ModelCompleted(),
        *[TurnEvent(state=state) for state in ("completed", "failed", "cancelled")],
        *[RunEvent(state=state) for state in ("completed", "failed", "cancelled", "terminated", "timed_out")],
    ],
    ids=lambda event: f"{event.type}-{getattr(event, 'state', '')}",
)
async def test_what_ends_a_step_a_turn_or_a_run_ends_all_its_waits(store: Store, event: Event):
    await store.append(batch(requested("a"), asked("b")))
    await store.append(batch(requested("a"), of="c/1"))
    await store.append(batch(event))
    assert await read_names(store) == [("c/1", "a")], "a subagent in background outlives its parent's turn"


@pytest.mark.parametrize("state", ["started", "idle", "paused", "resumed"])
async def test_a_pause_ends_no_wait(store: Store, state: str):
    await store.append(batch(requested()))
    await store.append(batch(RunEvent.model_validate({"state": state}), TurnEvent(state="started"), LimitReached()))
    assert await read_names(store) == [("c", "a")]


async def test_the_waits_of_a_reply_replace_those_of_the_one_before(store: Store):
    await store.append(batch(requested("a"), token=build_batch_token(T1)))
    reply = batch(ModelCompleted(), requested("b"), asked("d"), token=build_batch_token(T2))
    await store.commit(Commit(outcome=Outcome("k", "model", b"{}"), events=reply))
    assert await read_names(store) == [("c", "b"), ("c", "d")]


async def test_a_call_that_asks_again_waits_with_its_new_question(store: Store):
    await store.append(batch(requested("a")))
    await store.append(batch(ApprovalDecided(call_id="a", name="ask", decision="approved"), asked("a", "q1")))
    await store.append(batch(asked("a", "q2")))
    [wait] = await store.list_waits()
    assert (wait.kind, wait.hash, wait.tool, wait.created_at) == ("question", "q2", "ask", T2)


async def test_the_run_that_a_call_starts_ends_the_wait_of_the_call(store: Store):
    await store.append(batch(requested("call-a"), requested("call-b")))
    await store.append(batch(RunEvent(state="started"), of="c/1"))
    assert await read_names(store) == [("c", "call-b")]
    await store.append(batch(requested("x"), of="c/1"))
    [_, wait] = await store.list_waits()
    assert (wait.context_id, wait.root, json.loads(wait.body or b"")["hash"]) == ("c/1", "c", "h-x")


async def test_what_is_not_written_changes_no_wait(store: Store):
    await store.append(batch(requested(), token=build_batch_token(T2, 1)))
    await store.append(batch(NewEvent(LimitReached(), key="k")))
    decided = ApprovalDecided(call_id="a", name="refund", decision="denied")
    assert not await store.append(batch(decided, token=build_batch_token(T1, 1)))
    await store.append(batch(NewEvent(decided, key="k")))  # the key is there
    assert await read_names(store) == [("c", "a")]
    assert not await store.append(batch(asked("late"), token=build_batch_token(T1, 1)))
    assert await read_names(store) == [("c", "a")]


@pytest.mark.parametrize("how", ["token", "scheduled"])
async def test_the_outcome_of_a_lost_worker_changes_no_wait(store: Store, how: str):
    """It is recorded, because it has happened; the run has gone on without it."""
    await store.append(batch(ModelCompleted(), requested("now"), token=build_batch_token(T2)))
    fields = {how: build_batch_token(T1)}
    for key, events in (
        ("k1", [asked("late")]),
        ("k2", [ModelCompleted()]),
        ("k3", [ToolCompleted(call_id="now", name="t")]),
    ):
        late = batch(*events, **fields)
        await store.commit(Commit(outcome=Outcome(key, "tool", b"{}"), events=late))
    assert await read_names(store) == [("c", "now")]
    assert len(await store.read_events("c")) == 5


async def test_the_end_of_a_run_counts_whatever_a_tool_says_later(store: Store):
    """The first reader has recorded that the run was terminated; its tool asks all the same."""
    await store.append(batch(requested("a"), token=build_batch_token(T1)))
    await store.append(batch(RunEvent(state="terminated"), token=build_batch_token(T3)))
    late = batch(asked("b"), scheduled=build_batch_token(T2))
    await store.commit(Commit(outcome=Outcome("k", "tool", b"{}"), events=late))
    assert await read_names(store) == []


async def test_only_the_first_outcome_changes_waits(store: Store):
    for events in (batch(requested("a")), batch(requested("b"))):
        await store.commit(Commit(outcome=Outcome("k", "model", b"{}"), events=events))
    assert await read_names(store) == [("c", "a")]
    await store.claim("tool", "me", events=batch(ApprovalDecided(call_id="a", name="t", decision="approved")))
    assert await read_names(store) == []


async def test_pages_of_waits_by_age_and_by_expiry(store: Store):
    for n, (call_id, expires_in) in enumerate([("a", None), ("b", 30), ("c", 10), ("d", 20), ("e", 10)]):
        of, agent = ("c", "support") if n % 2 else ("d", "billing")
        at = T3 if call_id == "c" else T2 if n > 2 else T1
        new = [NewEvent(requested(call_id, at, expires_in))]
        await store.append(EventBatch(of, new, agent=agent))

    async def read_all(**filters: object) -> str:
        calls, after = "", None
        while page := await store.list_waits(after=after, limit=2, **filters):  # type: ignore[arg-type]
            assert len(page) <= 2
            calls += "".join(row.call_id for row in page)
            after = page[-1].get_cursor(filters.get("order", "since"), filters.get("group"))  # type: ignore[arg-type]
        return calls

    assert await read_all() == "badec"
    assert await read_all(order="expiry") == "ecdb"
    assert await read_all(agent="billing") == "aec"
    assert await read_all(agent="billing", order="expiry") == "ec"
    assert await read_all(kind="approval") == "badec"
    assert await read_all(kind="question") == await read_all(agent="unknown") == ""
    assert [await store.count_waits(), await store.count_waits(agent="billing")] == [5, 3]


async def test_waits_by_amount_in_groups_and_by_text(store: Store):
    amounts: dict[str, float | None] = {"a": 5, "b": 0.1 + 0.2, "c": None, "d": -7.25, "e": 1e300, "f": 5}
    for name, user, tenant in (("r1", "jo", "acme"), ("r2", None, None), ("r3", "ana", "acme")):
        await store.commit(
            Commit(
                outcome=Outcome(name, "model", b"{}"),
                run=RunRow(name, "payer", "s", None, "running", asked_at=T1, tenant=tenant, user=user),
            )
        )
    for number, (call_id, amount) in enumerate(amounts.items()):
        event = ApprovalRequested(
            at=T1,
            call_id=call_id,
            name="pay" if number % 2 else "refund",
            hash="h",
            summary=f"Pay {call_id.upper()}_1 100%",
            amount=amount,
        )
        await store.append(EventBatch(f"r{number % 3 + 1}", [NewEvent(event)], agent="payer"))

    async def read_all(order: WaitOrder = "since", group: WaitGroup | None = None, **filters: str) -> str:
        calls, after = "", None
        while page := await store.list_waits(order=order, group=group, after=after, limit=2, **filters):  # type: ignore[arg-type]
            calls += "".join(row.call_id for row in page)
            after = page[-1].get_cursor(order, group)
        return calls

    assert await read_all("amount") == "eafbd", (
        "equal amounts in the order of their runs; those without one are left out"
    )
    assert await read_all(group="tool") == "dbfaec", "each once, over all pages"
    assert await read_all(group="user") == "becfad", "those without a user first"
    assert await read_all("amount", "tenant") == "ebafd"
    assert await read_all("expiry", "tool") == ""
    assert await read_all(tool="pay", user="jo") == "d"
    assert await read_all(tenant="acme") == "adcf"
    assert await read_all(text="e_1") == await read_all(text="E_1 100%") == "e"
    assert await read_all(text="%") == await read_all(text="_") == await read_all(text="R") == "adbecf"
    assert await read_all(text="!") == await read_all(text="e%1") == ""
    [row] = await store.list_waits(text="b_1")
    assert (row.summary, row.amount, row.tenant, row.user) == ("Pay B_1 100%", 0.1 + 0.2, None, None)
    assert await store.count_wait_groups("tool") == {"pay": 3, "refund": 3}
    assert await store.count_wait_groups("tenant") == {"acme": 4, "": 2}
    assert await store.count_wait_groups("user", agent="payer", kind="approval", limit=1) == {"": 2}


async def test_a_client_removes_what_it_has_decided(store: Store):
    await store.append(batch(requested("a"), asked("b", "q2"), asked("d")))
    await store.remove_wait("c", "a", "h-a")
    await store.remove_wait("c", "b", "q1")  # it asks something else by now
    await store.remove_wait("c", "d")
    await store.remove_wait("c", "unknown")
    assert await read_names(store) == [("c", "b")]


async def test_waits_are_found_by_what_is_shown_of_them(store: Store):
    event = ApprovalRequested(call_id="a", name="pay", hash="h", at=T1, summary="Pay Ödön: 5")
    await store.append(EventBatch("c", [NewEvent(event)], agent="payer"))
    for text, count in (("Pay Ödön", 1), ("pAY Ödön", 1), ("Odon", 0)):
        assert len(await store.list_waits(text=text)) == count, text


async def test_any_text_in_a_wait(store: Store):
    event = ApprovalRequested(call_id="\0\1ä", name="\0", hash="\1", at=T1)
    await store.append(EventBatch("c\0", [NewEvent(event)], agent="\1\0"))
    [wait] = await store.list_waits(agent="\1\0")
    assert (wait.context_id, wait.call_id, wait.tool, wait.hash) == ("c\0", "\0\1ä", "\0", "\1")
    assert wait.body is not None
    await store.remove_wait("c\0", "\0\1ä", "\1")
    assert await store.count_waits() == 0


# --- whatever comes, all stores have the same rows -------------------------------------------------------------------

CALLS = st.sampled_from(["call-a", "b"])
EVENTS = st.one_of(
    CALLS.map(requested),
    CALLS.map(asked),
    CALLS.map(lambda call_id: ApprovalDecided(call_id=call_id, name="t", decision="approved")),
    CALLS.map(lambda call_id: ToolCompleted(call_id=call_id, name="t")),
    st.sampled_from(
        [ModelCompleted(), ModelDelta(text="x"), RunEvent(state="started"), RunEvent(state="failed"), LimitReached()]
    ),
    st.builds(
        ErrorEvent,
        at=st.sampled_from([T1, T2]),
        activity=st.sampled_from(["tool.t", "perdure.model"]),
        call_id=st.none() | CALLS,
        error_type=st.sampled_from(["RateLimitError", "ProviderServerError"]),
        status=st.sampled_from([None, 429, 500]),
        retry_in=st.sampled_from([None, 2.0, 2.0, 2.0]),
        fallback=st.sampled_from([None, None, "b:two"]),
    ),
    st.builds(
        RunEvent,
        at=st.just(T2),
        state=st.sampled_from(["held_up", "recovered"]),
        failing_call=st.just("perdure.model") | CALLS,
    ),
    st.just(ModelStarted(model="a:one")),
)
NEW = st.builds(NewEvent, EVENTS, st.sampled_from([None, None, None, "k1", "k2"]))
TOKENS = st.sampled_from(["", *[build_batch_token(at, attempt) for at in (T1, T2) for attempt in (1, None)]])
BATCHES = st.builds(
    EventBatch,
    st.sampled_from(["c", "c/1"]),
    st.lists(NEW, max_size=4),
    TOKENS,
    st.booleans(),
    agent=st.sampled_from(["support", "billing"]),
    tenant=st.sampled_from([None, "acme"]),
    scheduled=TOKENS,
)
WRITES = st.lists(st.tuples(st.sampled_from(["append", "commit", "claim"]), BATCHES), max_size=25)


@pytest.fixture(scope="module")
def names() -> Iterator[str]:
    return (f"example-{n}-" for n in itertools.count())


async def play(store: Store | ReferenceStore, name: str, writes: list[tuple[str, EventBatch]]) -> list[object]:
    """What is in the store after ``writes``."""
    store.write_options = WriteOptions(outbox={name: ["approval.*", "run", "model.*"]}, key_id=name)
    await store.open()
    root = f"{name}c"
    lineage = CHILD.model_copy(update={"root": root})
    try:
        for n, (how, given_batch) in enumerate(writes):
            is_child = given_batch.context_id != "c"
            one = replace(
                given_batch, context_id=f"{name}{given_batch.context_id}", lineage=lineage if is_child else None,
                agent=f"{name}{given_batch.agent}",
            )  # fmt: skip
            if how == "append":
                await store.append(one)
            elif how == "claim":
                await store.claim(f"{name}{n % 3}", f"{n}", again=True, events=one)
            else:
                await store.commit(Commit(outcome=Outcome(f"{name}o{n}", "tool", b"1"), events=one))
        waits = [row for row in await store.list_waits(limit=10_000) if row.context_id.startswith(name)]
        assert all(row.root == root and row.body for row in waits)
        outbox = await store.take_outbox("me", target=name, lease_seconds=60, limit=1000)
        recorded = {(row.seq, row.type) for row in await store.read_events(root)}
        assert {(row.seq, row.type) for row in outbox} <= recorded
        failing = [
            row for row in await store.list_failing_calls(held_up=False, limit=10_000)
            if row.context_id.startswith(name)
        ]  # fmt: skip
        failed = [
            row for row in await store.sum_failed_attempts("agent", FailureFilter(), limit=10_000)
            if (row.key or "").startswith(name)
        ]  # fmt: skip
        failed.sort(key=lambda row: (row.key or "", row.kind, row.error_type, row.status or 0))
        return [waits, failing, failed, outbox, (await store.count_keys()).get(name)]
    finally:
        await store.close()


@settings(max_examples=2 * settings.default.max_examples)
@given(WRITES)
def test_sqlite_and_reference_agree(
    tmp_path_factory: pytest.TempPathFactory, names: Iterator[str], writes: list[tuple[str, EventBatch]]
):
    name, url = next(names), f"sqlite:///{tmp_path_factory.getbasetemp()}/surfaces.db"
    stores = ReferenceStore(now=lambda: T3), SqliteStore(url, now=lambda: T3)
    reference, sqlite = (asyncio.run(play(store, name, writes)) for store in stores)
    assert sqlite == reference


@pytest.mark.postgres
@settings(max_examples=100, deadline=None)
@given(WRITES)
def test_postgres_and_reference_agree(postgres_url: str, names: Iterator[str], writes: list[tuple[str, EventBatch]]):
    name = next(names)
    stores = ReferenceStore(now=lambda: T3), PostgresStore(postgres_url, now=lambda: T3)
    reference, postgres = (asyncio.run(play(store, name, writes)) for store in stores)
    assert postgres == reference


# --- outbox ----------------------------------------------------------------------------------------------------------


async def test_nothing_is_put_into_the_outbox_by_default(store: Store):
    await store.append(batch(requested(), RunEvent(state="started")))
    assert await store.take_outbox("me", target="webhooks", lease_seconds=60) == []


async def test_chosen_events_are_in_the_outbox_of_their_targets(store: Store):
    store.write_options = WriteOptions(outbox={"webhooks": ["approval.*", "run"], "mail": ["run"], "all": ["*"]})
    await store.append(batch(RunEvent(state="started"), ModelDelta(text="x"), requested()))
    await store.append(batch(RunEvent(state="started"), of="c/1"))
    by_target = {
        target: [(row.context_id, row.stream, row.seq, row.type) for row in rows]
        for target in ("webhooks", "mail", "all", "none")
        if (rows := await store.take_outbox("me", target=target, lease_seconds=60)) is not None
    }
    run, approval, child = ("c", "c", 1, "run"), ("c", "c", 3, "approval.requested"), ("c/1", "c", 4, "run")
    assert by_target == {
        "webhooks": [run, approval, child],
        "mail": [run, child],
        "all": [run, approval, child],
        "none": [],
    }


async def test_an_event_that_is_dropped_is_not_in_the_outbox(store: Store):
    store.write_options = WriteOptions(outbox={"w": ["run"]})
    for _ in range(2):
        await store.append(batch(NewEvent(RunEvent(state="started"), key="k")))
    assert len(await store.take_outbox("me", target="w", lease_seconds=60)) == 1


async def test_two_deliverers_do_not_take_the_same(database: Database):
    stores = [await database.open() for _ in range(2)]
    stores[0].write_options = WriteOptions(outbox={"w": ["limit"]})
    await stores[0].append(batch(*[LimitReached()] * 60))

    async def deliver(store: Store, owner: str) -> list[int]:
        seqs: list[int] = []
        while rows := await store.take_outbox(owner, target="w", lease_seconds=60, limit=7):
            seqs += [row.seq for row in rows]
            assert await store.delete_outbox(owner, rows) == len(rows)
        return seqs

    taken = await asyncio.gather(*[deliver(stores[n % 2], f"deliverer-{n}") for n in range(4)])
    assert sorted(itertools.chain(*taken)) == list(range(1, 61))


async def test_a_lease_that_is_over_gives_the_row_to_the_next(store: Store):
    store.write_options = WriteOptions(outbox={"w": ["limit"]})
    await store.append(batch(LimitReached()))
    [lost] = await store.take_outbox("lost", target="w", lease_seconds=0)
    [taken] = await store.take_outbox("next", target="w", lease_seconds=60)
    assert (lost.seq, lost.taken, taken.seq, taken.taken) == (1, 1, 1, 2)
    assert await store.take_outbox("third", target="w", lease_seconds=60) == []
    assert await store.delete_outbox("lost", [lost]) == 0
    assert await store.delete_outbox("next", [taken]) == 1


@pytest.mark.postgres
async def test_no_plan_takes_more_than_asked_for(postgres_url: str):
    """One that joins row by row, as without statistics, may run a subquery again for each."""
    store = PostgresStore(f"{postgres_url}?pool_size=1", now=lambda: T3)
    store.write_options = WriteOptions(outbox={"plans": ["limit"]})
    await store.open()
    await store.append(batch(*[LimitReached()] * 30, of="plans"))
    for way in ("hashjoin", "mergejoin", "hashagg", "material", "sort"):
        await store._pool.fetch(f"SET enable_{way} = off")
    assert len(await store.take_outbox("me", target="plans", lease_seconds=60, limit=7)) == 7
    await store.close()


# --- audit -----------------------------------------------------------------------------------------------------------


def audit(id: str, at: str = T1, subject: str = "c", **fields: str) -> AuditRow:
    return AuditRow(id, at, "ada", "os-user", "host/1", subject, "approve", **fields)


async def test_the_audit_trail_is_the_newest_first_in_pages(store: Store):
    rows = [audit("1"), audit("2", T2, call_id="call"), audit("3", T2, "d"), audit("4", T3, detail="it")]
    for row in rows:
        await store.record_audit(row)
    assert await store.list_audit() == rows[::-1]
    assert await store.list_audit(limit=2) == [rows[3], rows[2]]
    assert await store.list_audit(after=(T2, "3")) == [rows[1], rows[0]]
    assert await store.list_audit(subject="c", since=T2) == [rows[3], rows[1]]


async def test_the_audit_trail_is_filtered(store: Store):
    rows = [
        audit("1", subject="acme-1"),
        replace(audit("2", T2, subject="none-1"), by="bob"),
        replace(audit("3", T2, subject="daily", tenant="acme"), verb="schedule.pause"),
        replace(audit("4", T3, subject="acme-1", refused="RunClosedError: it is"), verb="schedule%"),
    ]
    for name, tenant in [("acme-1", "acme"), ("none-1", None), ("other-1", "other")]:
        await store.commit(Commit(run=RunRow(name, "support", "s", None, "running", tenant=tenant)))
    for row in rows:
        await store.record_audit(row)

    async def ids(**filters: object) -> str:
        return "".join(row.id for row in await store.list_audit(**filters))  # type: ignore[arg-type]

    assert await ids(by="bob") == "2"
    assert await ids(by="bo") == ""
    assert (await ids(verb="approve"), await ids(verb="schedule.*"), await ids(verb="sch*")) == ("21", "3", "43")
    assert (await ids(verb="schedule%*"), await ids(verb="*")) == ("4", "4321")
    assert await ids(refused=True) == "4"
    assert (await ids(since=T2, until=T3), await ids(until=T2)) == ("32", "1")
    assert await ids(tenants=["acme"]) == "431"
    assert await ids(tenants=["other", "x'"]) == ""
    assert await ids(tenants=[]) == ""
    assert await ids(tenants=["acme"], subject="acme-1", by="ada", verb="a*", until=T3, after=(T3, "4")) == "1"


async def test_a_row_of_the_audit_trail_keeps_the_labels_that_its_subject_had(store: Store):
    own = {"agent": "support", "tenant": "acme", "user": "ann"}
    await store.record_audit(audit("1", tenant="acme", user="given"))
    await store.commit(Commit(run=RunRow("c", "support", "s", None, "completed", tenant="acme", user="ann")))
    await store.record_audit(audit("2", T2, user="given"))
    await store.record_refused_audit(audit("3", T3, refused="RunClosedError: it is"))
    refused, later, first = await store.list_audit(tenants=["acme"])
    for row in (refused, later):
        assert {name: getattr(row, name) for name in own} == own, "those of the run, where the store has it"
    assert (first.agent, first.tenant, first.user) == (None, "acme", "given")


async def test_the_trail_of_a_run_with_a_long_id_is_found(store: Store):
    names = [f"{'r' * 900}/{n}" for n in range(2)]
    for name in names:
        await store.record_audit(audit(name[-1], subject=name))
    for name in names:
        assert [row.subject for row in await store.list_audit(subject=name)] == [name]


async def test_refusals_of_a_caller_share_a_row_that_counts_them(store: Store):
    begun = audit("1", "2026-11-25T10:00:00.000001+00:00", detail="it")
    await store.record_audit(begun)
    await store.record_audit(replace(begun, detail="again"))
    assert await store.list_audit() == [begun]
    for minute in range(60):
        at = f"2026-11-25T10:{minute:02}:00.000001+00:00"
        await store.record_refused_audit(
            replace(begun, id=f"r{minute}" if minute else "1", at=at, refused=f"RunClosedError: {minute}")
        )
    [row] = await store.list_audit()
    assert (row.count, row.at, row.last_at) == (60, begun.at[:14] + "00:00.000001+00:00", at)
    assert (row.detail, row.refused) == ("it", "RunClosedError: 59")
    assert await store.list_audit(refused=True) == [row]
    others = [
        {"at": "2026-11-26T10:00:00.000001+00:00"},
        {"by": "bob"},
        {"auth": "token:1"},
        {"subject": "d"},
        {"verb": "deny"},
    ]
    for number, other in enumerate(others):
        await store.record_refused_audit(replace(begun, id=f"o{number}", refused="RunClosedError: gone", **other))
    assert sorted(known.count for known in await store.list_audit()) == [1, 1, 1, 1, 1, 60]


async def test_refusals_at_once_are_all_counted(store: Store):
    rows = [audit(f"{n}", refused="ForbiddenError: no") for n in range(20)]
    await asyncio.gather(*map(store.record_refused_audit, rows))
    [row] = await store.list_audit()
    assert row.count == 20


async def test_texts_that_cannot_be_stored_are_changed(store: Store):
    await store.record_audit(audit("1", detail="x" * 20_000_000, call_id="\ud800\0"))
    [row] = await store.list_audit()
    assert (len(row.detail or ""), row.call_id) == (500, clean_text("\ud800\0"))


# --- idempotency -----------------------------------------------------------------------------------------------------


async def test_answers_are_listed_by_the_beginning_of_their_keys(store: Store):
    for key in ("a/1", "a/2", "a/\u00e9", "a", "b/1", "a0"):
        await store.claim_idempotency(key, "h", "me", lease_seconds=60, keep_seconds=60)
        await store.complete_idempotency(key, "me", key.encode())
    await store.claim_idempotency("a/3", "h", "me", lease_seconds=60, keep_seconds=60)  # in progress
    assert await store.list_idempotency_answers("a/", 9) == [b"a/1", b"a/2", "a/\u00e9".encode()]
    assert await store.list_idempotency_answers("a/", 1) == [b"a/1"]
    assert await store.list_idempotency_answers("c", 9) == []


async def claim(store: Store, owner: str = "me", hash: str = "h", lease: float = 60, keep: float = 600) -> object:
    return await store.claim_idempotency("key", hash, owner, lease_seconds=lease, keep_seconds=keep)


async def test_a_request_that_is_repeated_gets_its_answer(store: Store):
    assert await claim(store) == IdempotencyClaim("new")
    assert await claim(store) == IdempotencyClaim("new"), "the same owner, whose answer was lost"
    assert await claim(store, "other") == IdempotencyClaim("running")
    assert await claim(store, "other", "another request") == IdempotencyClaim("mismatch")
    assert not await store.complete_idempotency("key", "other", b"no")
    for _ in range(2):  # the confirmation of the first may have been lost
        assert await store.complete_idempotency("key", "me", b"\0answer")
    assert not await store.complete_idempotency("key", "me", b"second")
    assert await claim(store) == await claim(store, "other") == IdempotencyClaim("done", b"\0answer")
    assert await claim(store, "other", "another request") == IdempotencyClaim("mismatch")


async def test_a_lost_process_frees_its_key_for_the_same_request_only(store: Store):
    assert await claim(store, "lost", lease=0) == IdempotencyClaim("new")
    assert await claim(store, "other", "another request") == IdempotencyClaim("mismatch")
    assert await claim(store, "next") == IdempotencyClaim("new")
    assert not await store.complete_idempotency("key", "lost", b"late")
    assert await store.complete_idempotency("key", "next", b"answer")


async def test_a_request_that_failed_frees_its_key(store: Store):
    await claim(store)
    assert await store.complete_idempotency("key", "me", None)
    assert await claim(store, "other", "another request") == IdempotencyClaim("new")


async def test_a_key_is_free_after_its_time(store: Store):
    await claim(store, keep=0)
    await store.complete_idempotency("key", "me", b"answer")
    assert await claim(store, "other", "another request", keep=0) == IdempotencyClaim("new")
    assert await store.delete_expired_idempotency() == 1
    assert await store.delete_expired_idempotency() == 0


@pytest.mark.postgres
async def test_a_key_that_is_claimed_again_while_it_is_deleted_stays(postgres_databases: Databases):
    url = postgres_databases.make()
    database = Database(lambda: PostgresStore(url, now=lambda: T3))
    store = await database.open()
    await claim(store, keep=0)
    connection = await asyncpg.connect(url)
    async with connection.transaction():  # what a claim writes
        await connection.execute("UPDATE idempotency SET owner = 'other', expires_at = '2027'")
        deletion = asyncio.create_task(store.delete_expired_idempotency())
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = $1"
        await eventually(lambda: connection.fetchval(waiting, url.rpartition("/")[2]))
    assert await deletion == 0
    assert await claim(store) == IdempotencyClaim("running")
    await connection.close()
    await store.close()


async def test_of_many_at_once_one_may_act(database: Database):
    stores = [await database.open() for _ in range(2)]
    claims = await asyncio.gather(*[claim(stores[n % 2], f"owner-{n}") for n in range(20)])
    assert sorted(getattr(one, "state", "") for one in claims) == ["new", *["running"] * 19]


async def test_keys_and_answers_are_bounded(store: Store):
    for key in ("", "k" * 501, "k\0", "k\ud800"):
        with pytest.raises(InvalidInputError, match="idempotency key"):
            await store.claim_idempotency(key, "h", "me", lease_seconds=1, keep_seconds=1)
    await claim(store)
    with pytest.raises(InvalidInputError, match="answer"):
        await store.complete_idempotency("key", "me", b"x" * 70_000)


# --- keys of bodies --------------------------------------------------------------------------------------------------


async def test_the_rows_under_each_key_are_counted(store: Store):
    def build_commit(n: int) -> Commit:
        return Commit(
            nodes=[Node(f"n{n}", None, b"[]")],
            blobs=[Blob(f"b{n}", b"x")],
            outcome=Outcome(f"k{n}", "model", b"{}"),
            run=RunRow("c", "support", "s", None, "running"),
            turn=TurnRow("c", "t", "running"),
            memory=[MemoryWrite("space", "name", b"1"), MemoryWrite("space", f"name-{n}", b"1")],
            events=batch(LimitReached()),
        )

    await store.commit(build_commit(0))
    assert await store.count_keys() == {}
    every = dict.fromkeys(("nodes", "blobs", "journal", "runs", "turns", "events"), 1)
    store.write_options = WriteOptions(key_id="old")
    await store.commit(build_commit(1))
    assert await store.count_keys() == {"old": every | {"memory": 2}}
    store.write_options = WriteOptions(key_id="new")
    await store.append(batch(LimitReached()))
    await store.commit(build_commit(2))
    await store.commit(Commit(nodes=[Node("n1", None, b"[]")]))  # it is there
    old = {"nodes": 1, "blobs": 1, "journal": 1, "events": 1, "memory": 1}
    assert await store.count_keys() == {"old": old, "new": every | {"memory": 2, "events": 2}}
    store.write_options = WriteOptions()
    await store.commit(Commit(memory=[MemoryWrite("space", "name", None), MemoryWrite("space", "name-2", b"2")]))
    assert await store.count_keys() == {"old": old, "new": {**every, "events": 2}}


async def test_a_store_that_fails_says_so():
    store = MemoryStore()
    store.failure = StoreError("gone")
    for call in (
        store.list_waits(),
        store.count_waits(),
        store.remove_wait("c", "a"),
        store.take_outbox("me", target="w", lease_seconds=1),
        store.delete_outbox("me", [OutboxRow("c", 1, "w", "c", "run", T1)]),
        store.record_audit(audit("1")),
        store.list_audit(),
        claim(store),
        store.complete_idempotency("key", "me", b""),
        store.delete_expired_idempotency(),
        store.count_keys(),
    ):
        with pytest.raises(StoreError, match="gone"):
            await call


# --- processes at once -----------------------------------------------------------------------------------------------

CONTENDER = """
import asyncio, json, sys
from perdure.store import open_store

async def main(url, owner):
    store = open_store(url)
    await store.open()
    print("ready", flush=True)
    sys.stdin.readline()
    won, seqs = [], []
    for n in range(30):
        claim = await store.claim_idempotency(f"key-{n}", "h", owner, lease_seconds=60, keep_seconds=600)
        if claim.state == "new":
            won.append(n)
            await store.complete_idempotency(f"key-{n}", owner, owner.encode())
    while rows := await store.take_outbox(owner, target="w", lease_seconds=60, limit=3):
        seqs += [row.seq for row in rows]
        await store.delete_outbox(owner, rows)
    print(json.dumps([won, seqs]), flush=True)
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_two_processes_share_keys_and_outbox_without_acting_twice(database: Database):
    url = database.other_process()
    store = await database.open()
    store.write_options = WriteOptions(outbox={"w": ["limit"]})
    await store.append(batch(*[LimitReached()] * 60))
    with contextlib.ExitStack() as stack:
        contenders = [stack.enter_context(python(CONTENDER, url, name)) for name in "xy"]
        outputs = await asyncio.gather(*[asyncio.to_thread(process.communicate, "\n") for process in contenders])
    (won_x, seqs_x), (won_y, seqs_y) = (json.loads(output) for output, _ in outputs)
    assert sorted([*won_x, *won_y]) == list(range(30))
    assert sorted([*seqs_x, *seqs_y]) == list(range(1, 61))
    for n in range(30):
        claim_after = await store.claim_idempotency(f"key-{n}", "h", "z", lease_seconds=60, keep_seconds=600)
        assert claim_after == IdempotencyClaim("done", b"x" if n in won_x else b"y")
