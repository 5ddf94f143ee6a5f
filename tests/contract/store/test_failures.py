"""What every store promises about calls that fail, and about the counts of failed attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from perdure.ports.failures import HELD_UP_ATTEMPTS, FailedAttempts, FailingCall, FailingCursor, FailureFilter
from perdure.ports.store import Commit, EventBatch, NewEvent, Outcome, Store, build_batch_token
from perdure.types.events import ErrorEvent, Event, ModelCompleted, ModelStarted, RunEvent, ToolCompleted, TurnEvent
from perdure.types.subagents import Lineage, PathStep

T1, T2, T3 = (f"2026-01-01T00:00:0{n}.000000+00:00" for n in (1, 2, 3))
CHILD = Lineage(root="c", path=(PathStep(agent="researcher", call_id="call-a"),), agent="support")
MODEL = "perdure.model"


def failed(call: str = MODEL, at: str = T1, retry_in: float | None = 2.0, **fields: Any) -> ErrorEvent:
    activity = call if call == MODEL else f"tool.{call}"
    fields = {"source": "openai:gpt-5", "status": 500, "error_type": "ProviderServerError", "error": "down"} | fields
    return ErrorEvent(at=at, activity=activity, call_id=None if call == MODEL else call, retry_in=retry_in, **fields)


def held_up(call: str = MODEL, at: str = T1) -> RunEvent:
    return RunEvent(at=at, state="held_up", failing_call=call)


def recovered(call: str = MODEL) -> RunEvent:
    return RunEvent(at=T3, state="recovered", failing_call=call)


def batch(*events: Event | NewEvent, of: str = "c", token: str = "", **fields: Any) -> EventBatch:
    new = [event if isinstance(event, NewEvent) else NewEvent(event) for event in events]
    lineage = CHILD if of == "c/1" else None
    fields = {"agent": "support", "tenant": "acme", "user": "ada"} | fields
    return EventBatch(of, new, token, advances=bool(token), lineage=lineage, **fields)


async def fail(store: Store, number: int = HELD_UP_ATTEMPTS, call: str = MODEL, of: str = "c", **fields: Any) -> None:
    for _ in range(number):
        await store.append(batch(failed(call, **fields), held_up(call), of=of))


async def read_states(store: Store, of: str = "c") -> list[str]:
    return [row.type if row.type != "run" else _state(row.body) for row in await store.read_events(of)]


def _state(body: bytes) -> str:
    return next(state for state in ("held_up", "recovered", "failed", "cancelled", "completed") if state in str(body))


async def test_a_failing_call_has_what_a_list_shows(store: Store):
    await store.append(batch(failed(), held_up()))
    assert await store.list_failing_calls() == [], "one failure is nothing yet"
    await fail(store, 2, at=T2, error="still down", status=503)
    next_at = "2026-01-01T00:00:04.000000+00:00"
    assert await store.list_failing_calls() == [
        FailingCall(
            *("c", MODEL, "c", "support", "acme", "ada", "model", "openai:gpt-5", "ProviderServerError", "still down"),
            *(503, 3, T1, T2, next_at, T1),
        )
    ]
    assert await read_states(store) == ["error", "error", "error", "held_up"]


async def test_a_run_is_held_up_once_and_recovers_once(store: Store):
    await fail(store, HELD_UP_ATTEMPTS + 3)
    for _ in range(2):
        await store.append(batch(recovered()))
    assert await read_states(store) == ["error"] * 3 + ["held_up"] + ["error"] * 3 + ["recovered"]
    assert await store.list_failing_calls(held_up=False) == []


async def test_a_call_that_fails_again_after_it_recovered_holds_its_run_up_again(store: Store):
    for _ in range(2):
        await fail(store)
        await store.append(batch(recovered()))
    states = await read_states(store)
    assert (states.count("held_up"), states.count("recovered")) == (2, 2)


async def test_a_run_that_was_not_held_up_does_not_recover(store: Store):
    await fail(store, HELD_UP_ATTEMPTS - 1)
    await store.append(batch(recovered()))
    assert await read_states(store) == ["error"] * 2
    assert await store.list_failing_calls(held_up=False) == []


async def test_the_same_write_twice_counts_once(store: Store):
    for attempt in (1, 1, 2, 2):
        await store.append(batch(NewEvent(failed(), key=f"error/{attempt}"), held_up()))
    [row] = await store.list_failing_calls(held_up=False)
    [total] = await store.sum_failed_attempts()
    assert (row.attempts, total.attempts) == (2, 2)


async def test_an_attempt_of_a_lost_worker_says_nothing_about_the_next(store: Store):
    """A worker that was taken for lost fails when its call has an outcome already."""
    await store.append(batch(ModelCompleted(), token=build_batch_token(T2)))
    assert not await store.append(batch(failed(), held_up(), token=build_batch_token(T2, 1)))
    assert await store.list_failing_calls(held_up=False) == []
    assert await store.sum_failed_attempts() == []


@pytest.mark.parametrize(
    ("event", "left"),
    [
        (ToolCompleted(call_id="a", name="t"), {MODEL, "b"}),
        (ModelStarted(), {MODEL}),
        (ModelCompleted(), set()),
        *[(TurnEvent(state=state), set[str]()) for state in ("completed", "failed", "cancelled")],
        *[
            (RunEvent(state=state), set[str]())
            for state in ("completed", "failed", "cancelled", "terminated", "timed_out")
        ],
        (failed("a", retry_in=None), {MODEL, "b"}),
        (failed("a", fallback="b:two", retry_in=None), {MODEL, "a", "b"}),
        (recovered("b"), {MODEL, "a"}),
        (RunEvent(state="paused"), {MODEL, "a", "b"}),
    ],
    ids=lambda value: f"{value.type}-{getattr(value, 'state', '')}" if hasattr(value, "type") else "",
)
@pytest.mark.parametrize("how", ["append", "commit"])
async def test_what_ends_a_call_ends_its_row(store: Store, event: Event, left: set[str], how: str):
    for call in (MODEL, "a", "b"):
        await fail(store, 1, call)
    await fail(store, 1, of="c/1")
    if how == "append":
        await store.append(batch(event))
    else:
        await store.commit(Commit(outcome=Outcome("k", "tool", b"{}"), events=batch(event)))
    rows = {(row.context_id, row.call) for row in await store.list_failing_calls(held_up=False)}
    assert rows == {("c", call) for call in left} | {("c/1", MODEL)}
    await store.append(batch(failed("a")))  # the run may fail again
    assert ("c", "a") in {(row.context_id, row.call) for row in await store.list_failing_calls(held_up=False)}


async def test_a_run_has_the_failures_of_the_runs_below_it(store: Store):
    await fail(store, of="c/1", call="lookup")
    await fail(store, 1, at=T2)
    await fail(store, of="d")
    await fail(store, of="cc")
    found = await store.list_run_failures(["c", "c/1", "d", "unknown"])
    assert {name: [(row.context_id, row.call, row.root) for row in rows] for name, rows in found.items()} == {
        "c": [("c/1", "lookup", "c")],
        "c/1": [("c/1", "lookup", "c")],
        "d": [("d", MODEL, "d")],
    }
    everything = await store.list_run_failures(["c"], held_up=False)
    assert [row.context_id for row in everything["c"]] == ["c/1", "c"]
    assert await store.count_held_up() == 3
    assert [await store.count_held_up(agent=name) for name in ("support", "billing")] == [3, 0]


async def test_pages_of_failing_calls(store: Store):
    for n, name in enumerate("abcde"):
        labels = {"agent": "billing"} if n % 2 else {"tenant": None, "user": None}
        for _ in range(HELD_UP_ATTEMPTS):
            await store.append(batch(failed(at=T1 if n > 2 else T2), held_up(), of=name, **labels))

    async def read_all(**filters: str) -> str:
        names, after = "", None
        while page := await store.list_failing_calls(after=after, limit=2, **filters):
            names += "".join(row.context_id for row in page)
            after = FailingCursor(page[-1].since, page[-1].context_id, page[-1].call)
        return names

    assert await read_all() == "deabc"
    assert [await read_all(agent="billing"), await read_all(tenant="acme"), await read_all(user="ada")] == ["db"] * 3


async def test_a_row_of_a_run_that_ended_without_a_record_can_be_removed(store: Store):
    await fail(store)
    await store.remove_failing_calls("c")
    await store.remove_failing_calls("unknown")
    assert await store.list_failing_calls() == []
    await fail(store)
    assert len(await store.list_failing_calls()) == 1


async def test_failed_attempts_are_summed_by_cause(store: Store):
    later = "2026-01-02T05:00:00.000000+00:00"
    await fail(store, 3)
    await fail(store, 2, at=later, source="anthropic:opus", status=None, error_type="ProviderConnectionError")
    await store.append(batch(failed(at=later, retry_in=None, status=401, error_type="AuthenticationError"), agent="b"))
    await store.append(batch(failed("t", at=later, source="lookup", status=None), tenant=None, user=None))

    def show(rows: Sequence[FailedAttempts]) -> list[tuple[object, ...]]:
        return [(row.key, row.source, row.status, row.attempts, row.ended) for row in rows]

    assert show(await store.sum_failed_attempts()) == [
        (None, "openai:gpt-5", 500, 3, 0),
        (None, "anthropic:opus", None, 2, 0),
        (None, "lookup", None, 1, 0),
        (None, "openai:gpt-5", 401, 1, 1),
    ]
    by_hour = await store.sum_failed_attempts("hour")
    assert [row.key for row in by_hour] == ["2026-01-02T05"] * 3 + ["2026-01-01T00"]
    assert {row.key for row in await store.sum_failed_attempts("day")} == {"2026-01-01", "2026-01-02"}
    assert {row.key for row in await store.sum_failed_attempts("agent")} == {"support", "b"}
    assert {row.key for row in await store.sum_failed_attempts("tenant")} == {"acme", None}

    async def count(**filters: Any) -> int:
        return sum(row.attempts for row in await store.sum_failed_attempts(filter=FailureFilter(**filters)))

    assert [await count(since=later), await count(until=later)] == [4, 3]
    assert [await count(agent="b"), await count(agents=["b", "x"]), await count(agents=[])] == [1, 1, 0]
    assert [await count(tenant="acme"), await count(tenant=""), await count(tenants=["acme"])] == [6, 1, 6]
    assert [await count(source="lookup"), await count(source="x")] == [1, 0]
    assert len(await store.sum_failed_attempts(limit=1)) == 1


async def test_any_text_in_a_failing_call(store: Store):
    event = failed("\0\1ä", error="\0", source="\1", error_type="\0x")
    for _ in range(HELD_UP_ATTEMPTS):
        await store.append(batch(event, held_up("\0\1ä"), of="c\0", agent="\0", tenant="\1\0", user="\0"))
    [row] = await store.list_failing_calls(agent="\0", tenant="\1\0", user="\0")
    assert (row.context_id, row.call, row.error, row.source, row.error_type) == ("c\0", "\0\1ä", "\0", "\1", "\0x")
    assert list(await store.list_run_failures(["c\0"])) == ["c\0"]
    [summed] = await store.sum_failed_attempts("agent")
    assert (summed.key, summed.source) == ("\0", "\1")
