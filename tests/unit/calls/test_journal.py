"""The journal stage: what was paid for is never paid for again, and nothing that was paid for is thrown away."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from perdure.calls import journal
from perdure.calls.call import ToolCall
from perdure.calls.journal import JournalStage
from perdure.calls.journal_keys import build_step_key
from perdure.errors import ProviderServerError, StoreError, StoreVersionError, TranscriptCorruptedError
from perdure.ports.store import Claim, Commit, Outcome
from perdure.store.cache import CachedJournal
from perdure.testing.store import MemoryStore
from perdure.types.messages import INLINE_BYTES
from perdure.types.wire import ToolOutput
from tests.unit.calls.build import Inner, model_call, reply, tool_call

LOCKED = StoreError("the store is locked", hint="Close the program that holds it.")


class Waits:
    """What a stage says that it waits for; ``said`` is set at the first."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.said = asyncio.Event()

    def __call__(self, reason: str) -> None:
        self.reasons.append(reason)
        self.said.set()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "CANCELLED_COMMIT_TIMEOUT", 0.5)


# --- model calls


async def test_a_recorded_model_call_is_not_made_again(store: MemoryStore) -> None:
    stage, inner = JournalStage(store), Inner(reply("first", model="m"), reply("second"))
    first = await stage.step(model_call(), inner)
    again = await stage.step(model_call(owner="run/1/2"), inner)
    assert len(inner.calls) == 1
    assert again == first


async def test_another_call_has_another_key(store: MemoryStore) -> None:
    stage, inner = JournalStage(store), Inner("answer")
    for call in (model_call(), model_call("ho"), model_call(op=7), model_call(head="h"), model_call(scope="other")):
        await stage.step(call, inner)
    assert len(inner.calls) == 5
    assert store.run_sql("SELECT count(*) FROM journal") == [(5,)]


async def test_a_failed_model_call_leaves_nothing(store: MemoryStore) -> None:
    stage, inner = JournalStage(store), Inner(ProviderServerError("500"), "answer")
    with pytest.raises(ProviderServerError):
        await stage.step(model_call(), inner)
    assert store.run_sql("SELECT count(*) FROM journal") == [(0,)]
    assert store.commits == []
    assert (await stage.step(model_call(), inner)).text == "answer"


async def test_of_two_attempts_the_first_reply_counts(store: MemoryStore) -> None:
    """The slow one is a worker that was taken for lost. What it says is dropped, its node and its run row too."""
    stage = JournalStage(store)
    gate = asyncio.Event()
    slow_inner = Inner("slow", gate=gate)
    slow = asyncio.ensure_future(stage.step(model_call(), slow_inner))
    await slow_inner.entered.wait()
    quick = await stage.step(model_call(owner="run/1/2"), Inner("quick"))
    gate.set()
    assert (await slow) == quick
    assert quick.text == "quick"


async def test_a_store_that_fails_before_the_call_costs_nothing(store: MemoryStore) -> None:
    stage, inner = JournalStage(store), Inner("answer")
    store.failure = LOCKED
    with pytest.raises(StoreError, match="locked"):
        await stage.step(model_call(), inner)
    assert inner.calls == []


@pytest.mark.parametrize("kind", ["model", "tool"])
async def test_a_store_that_fails_behind_a_paid_call_is_insisted_on(store: MemoryStore, kind: str) -> None:
    waits = Waits()
    stage = JournalStage(store, waits)
    gate = asyncio.Event()
    inner = Inner("answer", gate=gate)
    call: Any = stage.step(model_call(), inner) if kind == "model" else stage.tool(tool_call(), inner)
    running = asyncio.ensure_future(call)
    await inner.entered.wait()
    store.failure = LOCKED
    gate.set()
    await waits.said.wait()
    assert "StoreError: the store is locked" in waits.reasons[0]
    store.failure = None
    await running
    assert len(inner.calls) == 1
    assert len(store.commits) == 1
    assert waits.reasons[-1] == ""  # a wait that is over is not reported


async def test_a_failure_that_no_waiting_mends_is_raised(store: MemoryStore) -> None:
    waits = Waits()
    gate = asyncio.Event()
    inner = Inner("answer", gate=gate)
    running = asyncio.ensure_future(JournalStage(store, waits).step(model_call(), inner))
    await inner.entered.wait()
    store.failure = StoreVersionError("newer")
    gate.set()
    with pytest.raises(StoreVersionError):
        await running
    assert waits.reasons == []


# --- cancelled while it records


class Held(MemoryStore):
    """A store whose commits wait for ``go``."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.asked = asyncio.Event()

    async def commit(self, commit: Commit) -> bytes | None:
        self.asked.set()
        await self.go.wait()
        return await super().commit(commit)


async def test_cancelled_while_recording_it_records_first() -> None:
    store = Held()
    await store.open()
    running = asyncio.ensure_future(JournalStage(store).step(model_call(), Inner("paid")))
    await store.asked.wait()
    running.cancel()
    await asyncio.sleep(0)
    store.go.set()
    assert (await running).text == "paid"  # the reply is there: it is handed over
    assert (
        b"paid" in (await store.find_outcomes([build_step_key(model_call().input)]))[build_step_key(model_call().input)]
    )


async def test_cancelled_while_the_store_stays_away_it_gives_up_in_time(store: MemoryStore) -> None:
    waits = Waits()
    gate = asyncio.Event()
    inner = Inner("paid", gate=gate)
    running = asyncio.ensure_future(JournalStage(store, waits).tool(tool_call(), inner))
    await inner.entered.wait()
    store.failure = LOCKED
    gate.set()
    await waits.said.wait()
    running.cancel()
    with pytest.raises(StoreError, match="did not take the outcome"):
        await running


# --- tool calls


async def test_a_recorded_tool_call_is_not_run_again(store: MemoryStore) -> None:
    stage, inner = JournalStage(store), Inner("42", "43")
    first = await stage.tool(tool_call(), inner)
    again = await stage.tool(tool_call(owner="run/2/2"), inner)
    assert again == first == ToolOutput(key=tool_call().key, content="42")
    assert len(inner.calls) == 1


async def test_begun_and_never_reported_the_outcome_is_unknown(store: MemoryStore) -> None:
    stage, inner = JournalStage(store), Inner("42")
    await store.claim(tool_call().key, "run/2/1")
    output = await stage.tool(tool_call(owner="run/2/2"), inner)
    assert inner.calls == []
    assert output.status == "unknown"
    assert output.is_error
    assert "OutcomeUnknown: pay was started" in (output.content or "")
    # That it is unknown is itself the outcome: a third attempt says the same, also to an idempotent tool's retry.
    assert await stage.tool(tool_call(owner="run/2/3"), inner) == output


async def test_begun_and_idempotent_it_runs_again(store: MemoryStore) -> None:
    stage, inner = JournalStage(store), Inner("42")
    await store.claim(tool_call().key, "run/2/1")
    output = await stage.tool(tool_call(owner="run/2/2", idempotent=True), inner)
    assert output.content == "42"
    assert len(inner.calls) == 1


async def test_retries_bounds_how_often_an_idempotent_tool_begins(store: MemoryStore) -> None:
    stage, inner = JournalStage(store), Inner(asyncio.CancelledError())
    for attempt in range(1, 4):
        with pytest.raises(asyncio.CancelledError):  # begun, and the worker ended
            await stage.tool(tool_call(owner=f"run/2/{attempt}", idempotent=True, retries=2), inner)
    last = tool_call(owner="run/2/4", idempotent=True, retries=2)
    output = await stage.tool(last, inner)
    assert len(inner.calls) == 3
    assert (output.status, output.is_error) == ("unknown", True)
    assert "pay was started 3 times, and its worker was lost each time" in (output.content or "")
    assert await stage.tool(last, inner) == output


async def test_an_attempt_that_never_began_is_no_retry(store: MemoryStore) -> None:
    inner = Inner("42")
    store.failure = LOCKED
    for attempt in range(1, 4):
        waits = Waits()
        call = tool_call(owner=f"run/2/{attempt}", idempotent=True, retries=0)
        running = asyncio.ensure_future(JournalStage(store, waits).tool(call, inner))
        await waits.said.wait()
        running.cancel()
        await asyncio.wait([running])
    store.failure = None
    output = await JournalStage(store).tool(tool_call(owner="run/2/4", idempotent=True, retries=0), inner)
    assert (output.content, output.status) == ("42", "done")


async def test_a_claim_whose_answer_was_lost_is_made_again_by_the_same_attempt(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another attempt would find a call that was begun, and could not know that the tool was never called."""
    waits = Waits()
    claim, answers = store.claim, [StoreError("the server is gone"), None]

    async def lose_answer(*arguments: Any, **more: Any) -> Claim:
        made = await claim(*arguments, **more)
        if (error := answers.pop(0)) is not None:
            raise error
        return made

    monkeypatch.setattr(store, "claim", lose_answer)
    inner = Inner("42")
    output = await JournalStage(store, waits).tool(tool_call(), inner)
    assert (output.content, output.status, len(inner.calls)) == ("42", "done", 1)
    assert waits.reasons == ["StoreError: the server is gone", ""]


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("inline", ["", "/call/1"])
async def test_an_attempt_that_was_taken_for_lost_does_not_end_a_later_one(
    store: MemoryStore, idempotent: bool, inline: str
) -> None:
    """A worker stood still before it claimed the call, and Temporal has started the next attempt elsewhere. What this
    one does not know is no outcome: that of the next one is on its way."""
    task: dict[str, Any] = {"idempotent": idempotent, "retries": 0}
    gate = asyncio.Event()
    inner = Inner("42", gate=gate)
    later = asyncio.ensure_future(JournalStage(store).tool(tool_call(owner=f"run/2/10{inline}", **task), inner))
    await inner.entered.wait()
    with pytest.raises(StoreError, match="a later attempt has begun") as raised:
        await JournalStage(store).tool(tool_call(owner=f"run/2/9{inline}", **task), Inner("never"))
    assert raised.value.retryable
    gate.set()
    assert ((await later).content, (await later).status) == ("42", "done")


async def test_an_attempt_that_waited_for_the_store_does_not_end_a_later_one(store: MemoryStore) -> None:
    """It was cut off from the store and from Temporal."""
    waits, gate = Waits(), asyncio.Event()
    inner = Inner("42", gate=gate)
    store.failure = LOCKED
    cut_off = asyncio.ensure_future(JournalStage(store, waits).tool(tool_call(owner="run/2/1"), Inner("never")))
    await waits.said.wait()
    store.failure = None
    later = asyncio.ensure_future(JournalStage(store).tool(tool_call(owner="run/2/2"), inner))
    await inner.entered.wait()
    with pytest.raises(StoreError, match="a later attempt has begun"):
        await cut_off
    gate.set()
    assert ((await later).content, (await later).status) == ("42", "done")


async def _cancel(running: asyncio.Future[Any]) -> None:
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_cancelled_in_a_hook_before_the_call_the_next_attempt_runs_it(store: MemoryStore) -> None:
    """A worker that stops; or an attempt that Temporal has cancelled."""
    hook = asyncio.Event()

    async def never_reaches_the_call(call: ToolCall) -> ToolOutput:
        hook.set()
        await asyncio.Event().wait()
        raise AssertionError

    running = asyncio.ensure_future(JournalStage(store).tool(tool_call(owner="run/2/1"), never_reaches_the_call))
    await hook.wait()
    assert (await store.claim(tool_call().key, "run/2/2")).state == "begun"
    await _cancel(running)
    inner = Inner("42")
    output = await JournalStage(store).tool(tool_call(owner="run/2/3"), inner)
    assert (output.content, output.status, len(inner.calls)) == ("42", "done", 1)


@pytest.mark.parametrize("is_written", [True, False])
async def test_cancelled_while_its_claim_is_written_the_next_attempt_runs_it(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    """A store completes what it has begun to write, also for a caller that has gone."""
    gate, asked, claim = asyncio.Event(), asyncio.Event(), store.claim

    async def slow_claim(*given: Any, **options: Any) -> Claim:
        made = await claim(*given, **options) if is_written else None
        asked.set()
        await gate.wait()
        return made or await claim(*given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(store, "claim", slow_claim)
        running = asyncio.ensure_future(JournalStage(store).tool(tool_call(owner="run/2/1"), Inner("never")))
        await asked.wait()
        running.cancel()
        await asyncio.sleep(0)
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await running
    inner = Inner("42")
    output = await JournalStage(store).tool(tool_call(owner="run/2/2"), inner)
    assert (output.content, output.status, len(inner.calls)) == ("42", "done", 1)


async def test_a_claim_that_cannot_be_given_up_counts_as_begun(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancelled_in_a_hook(call: ToolCall) -> ToolOutput:
        store.failure = LOCKED
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await JournalStage(store).tool(tool_call(owner="run/2/1"), cancelled_in_a_hook)
    store.failure = None
    assert (await JournalStage(store).tool(tool_call(owner="run/2/2"), Inner("never"))).status == "unknown"


async def test_cancelled_in_the_call_it_has_begun(store: MemoryStore) -> None:
    inner = Inner("42", gate=asyncio.Event())
    running = asyncio.ensure_future(JournalStage(store).tool(tool_call(owner="run/2/1"), inner))
    await inner.entered.wait()
    await _cancel(running)
    assert (await JournalStage(store).tool(tool_call(owner="run/2/2"), Inner("never"))).status == "unknown"


async def test_a_late_release_does_not_free_the_call_of_a_later_attempt(store: MemoryStore) -> None:
    """It stood still in a hook; the next attempt has been told that the outcome is unknown, which counts."""
    hook, go = asyncio.Event(), asyncio.Event()

    async def stands_still(call: ToolCall) -> ToolOutput:
        hook.set()
        await go.wait()
        raise asyncio.CancelledError

    running = asyncio.ensure_future(JournalStage(store).tool(tool_call(owner="run/2/1"), stands_still))
    await hook.wait()
    unknown = await JournalStage(store).tool(tool_call(owner="run/2/2"), Inner("never"))
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await JournalStage(store).tool(tool_call(owner="run/2/3"), Inner("never")) == unknown


@pytest.mark.parametrize("owner", ["run/2/1", "run/1/7", "another/2/7"])
async def test_a_call_that_an_earlier_attempt_or_another_activity_began_is_unknown(
    store: MemoryStore, owner: str
) -> None:
    await store.claim(tool_call().key, owner)
    assert (await JournalStage(store).tool(tool_call(owner="run/2/2"), Inner("never"))).status == "unknown"


async def test_an_outcome_is_returned_whatever_the_retries(store: MemoryStore) -> None:
    """The worker was lost after it had recorded: that is no start."""
    stage, inner = JournalStage(store), Inner("42")
    for attempt in range(1, 4):
        output = await stage.tool(tool_call(owner=f"run/2/{attempt}", idempotent=True, retries=0), inner)
        assert (output.content, output.status) == ("42", "done")
    assert len(inner.calls) == 1


async def test_the_same_attempt_may_ask_twice(store: MemoryStore) -> None:
    """Its claim was written, and the answer lost on the way: no other attempt has acted."""
    stage, inner = JournalStage(store), Inner("42")
    await store.claim(tool_call().key, "run/2/1")
    assert (await stage.tool(tool_call(owner="run/2/1"), inner)).content == "42"


async def test_a_late_result_of_a_tool_that_was_given_up_is_dropped(store: MemoryStore) -> None:
    stage = JournalStage(store)
    gate = asyncio.Event()
    slow_inner = Inner("late", gate=gate)
    slow = asyncio.ensure_future(stage.tool(tool_call(), slow_inner))
    await slow_inner.entered.wait()
    unknown = await stage.tool(tool_call(owner="run/2/2"), Inner("never"))
    gate.set()
    assert await slow == unknown
    assert unknown.status == "unknown"


async def test_what_a_tool_acts_on_is_claimed_before_it_acts(store: MemoryStore) -> None:
    gate = asyncio.Event()
    inner = Inner("42", gate=gate)
    running = asyncio.ensure_future(JournalStage(store).tool(tool_call(), inner))
    await inner.entered.wait()
    assert store.run_sql("SELECT owner FROM journal WHERE key = :key", key=tool_call().key) == [("run/2/1",)]
    gate.set()
    await running


@pytest.mark.parametrize(
    ("text", "in_history"),
    [("x" * INLINE_BYTES, True), ("x" * (INLINE_BYTES + 1), False), ("€" * (INLINE_BYTES // 3 + 1), False), ("", True)],
)
async def test_a_large_result_goes_to_the_store_and_its_reference_to_history(
    store: MemoryStore, text: str, in_history: bool
) -> None:
    output = await JournalStage(store).tool(tool_call(), Inner(text))
    if in_history:
        assert (output.content, output.blob) == (text, None)
        assert store.run_sql("SELECT hash FROM blobs") == []
    else:
        assert output.content is None
        assert output.blob is not None
        assert await store.read_blobs([output.blob.hash]) == {output.blob.hash: text.encode()}
        assert len(store.commits) == 1  # with the outcome, so that neither is there alone


async def test_an_outcome_of_an_older_perdure_is_read(store: MemoryStore) -> None:
    """Fields that it did not have yet take their defaults; fields that a newer one adds are passed over."""
    call = tool_call()
    body = json.dumps({"key": call.key, "content": "42", "added_later": True}).encode()
    await store.commit(Commit(outcome=Outcome(call.key, "tool", body)))
    inner = Inner("43")
    assert (await JournalStage(store).tool(replace(call), inner)).content == "42"
    assert inner.calls == []


@pytest.mark.parametrize("kind", ["model", "tool"])
async def test_an_outcome_that_was_altered_is_neither_believed_nor_made_again(store: MemoryStore, kind: str) -> None:
    stage, inner = JournalStage(store), Inner("42")

    def again() -> Any:
        return stage.step(model_call(), inner) if kind == "model" else stage.tool(tool_call(), inner)

    await again()
    store.run_sql("UPDATE journal SET outcome = :outcome", outcome=b'{"content": 4')
    with pytest.raises(TranscriptCorruptedError, match="cannot be read") as caught:
        await again()
    assert "backup" in str(caught.value)
    assert len(inner.calls) == 1


@pytest.mark.parametrize("kind", ["model", "tool"])
async def test_an_entry_that_was_damaged_and_restored_is_read_again_by_the_same_worker(
    store: MemoryStore, kind: str
) -> None:
    async def call_again(stage: JournalStage) -> Any:
        inner = Inner("42")
        return await (stage.step(model_call(), inner) if kind == "model" else stage.tool(tool_call(), inner))

    recorded = await call_again(JournalStage(store))
    [(whole,)] = store.run_sql("SELECT outcome FROM journal")
    store.run_sql("UPDATE journal SET outcome = :outcome", outcome=b'{"content": 4')
    another_worker = JournalStage(CachedJournal(store))
    with pytest.raises(TranscriptCorruptedError):
        await call_again(another_worker)
    store.run_sql("UPDATE journal SET outcome = :outcome", outcome=whole)
    read = await call_again(another_worker)
    assert read == recorded
