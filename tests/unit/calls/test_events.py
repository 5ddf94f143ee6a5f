"""The events stage: what a model call is at is told as it happens, each thing once, and the call never waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from perdure.calls import event_feed
from perdure.calls.call import CloseCall, ModelCall
from perdure.calls.event_feed import BatchWriter, WriteClock
from perdure.errors import AuthenticationError, RateLimitError, StoreError, StoreMismatchError, TranscriptCorruptedError
from perdure.ports.model import Completed, Restarted, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from perdure.ports.store import EventBatch
from perdure.testing.store import MemoryStore
from perdure.types.events import (
    ErrorEvent,
    ModelCompleted,
    ModelDelta,
    ModelRetracted,
    ModelStarted,
    RunEvent,
    TurnEvent,
)
from perdure.types.limits import LimitUse
from perdure.types.tool_calls import Call, RefusedCall
from perdure.types.wire import NewMessage, NewResult, RunEnding
from tests.support.wait import eventually
from tests.unit.calls.build import Inner, close_call, model_call, reply
from tests.unit.calls.event_fixtures import NEXT, Model, Stages, Step, events, shown, until

LIMIT = LimitUse(name="max_iterations", scope="turn", used=3, allowed=3)

BEGUN = ["run started", "turn started", "message.injected hi"]
ENDED = ["model.completed Done.", "turn completed Done."]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test does not wait for is not written before the outcome, however slow the machine is."""
    monkeypatch.setattr(event_feed, "FIRST_WRITE_DELAY", 60.0)
    monkeypatch.setattr(event_feed, "DELTA_INTERVAL", 1e9)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "FIRST_WRITE_DELAY", 0.001)
    monkeypatch.setattr(event_feed, "DELTA_INTERVAL", 0.001)


def written(store: MemoryStore, text: str) -> Callable[[ModelCall], Any]:
    """Until a delta that ends in ``text`` is there."""

    async def wait(call: ModelCall) -> None:
        after = 0
        while True:
            delta = await until(store, "model.delta", after)
            assert isinstance(delta, ModelDelta)
            if delta.text.endswith(text):
                return
            after = delta.seq

    return wait


async def test_a_quick_reply_is_told_with_its_outcome(store: MemoryStore) -> None:
    await Stages(store).model(model_call(), Model(reply("Done."), TextDelta("Do"), TextDelta("ne."), Completed(())))
    told = await events(store)
    assert shown(told) == [*BEGUN, "model.started", *ENDED]
    assert [event.seq for event in told] == [1, 2, 3, 4, 5, 6]
    assert {event.task_id for event in told} == {"scope-1-1"}
    assert all(event.at > "2026" and event.attempt == 1 for event in told)
    (commit,) = store.commits
    assert commit.events is not None
    assert len(commit.events.events) == 6
    completed = told[4]
    assert isinstance(completed, ModelCompleted)
    assert completed.head == commit.nodes[0].hash
    assert completed.replaces == ()


@pytest.mark.usefixtures("quick")
async def test_deltas_are_there_before_the_reply_is_whole_and_gone_after(store: MemoryStore) -> None:
    seen: list[ModelDelta] = []

    async def look(call: ModelCall) -> None:
        seen.extend(event for event in await events(store) if isinstance(event, ModelDelta))

    script: list[Step] = [
        ThinkingDelta("Hm"),
        written(store, "Hm"),
        TextDelta("Do"),
        written(store, "Do"),
        TextDelta("ne."),
        ToolCallDelta(0, "c1", "pay", ""),
        ToolCallDelta(0, "", "", '{"a":'),
        ToolCallDelta(0, "", "", "1}"),
        written(store, "1}"),
        look,
    ]
    await Stages(store).model(model_call(), Model(reply("Done."), *script))
    assert [(d.kind, d.text, d.offset, d.call_id, d.name) for d in seen] == [
        ("thinking", "Hm", 0, "", ""),
        ("text", "Do", 0, "", ""),
        ("text", "ne.", 2, "", ""),
        ("tool_call", '{"a":1}', 0, "c1", "pay"),
    ]
    told = await events(store)
    assert shown(told) == [*BEGUN, "model.started", *ENDED]
    completed = told[4]
    assert isinstance(completed, ModelCompleted)
    assert completed.replaces == ((seen[0].seq, seen[-1].seq),)


@pytest.mark.usefixtures("quick")
async def test_a_silent_model_is_said_to_be_asked(store: MemoryStore) -> None:
    async def asked(call: ModelCall) -> None:
        started = await until(store, "model.started")
        assert isinstance(started, ModelStarted)
        assert started.model == "scripted:one"

    await Stages(store).model(model_call(), Model(reply("Done."), asked))
    assert shown(await events(store)) == [*BEGUN, "model.started", *ENDED]


@pytest.mark.usefixtures("quick")
async def test_without_stream_everything_comes_with_the_outcome(store: MemoryStore) -> None:
    async def nothing(call: ModelCall) -> None:
        await asyncio.sleep(0.05)
        assert await events(store) == []

    await Stages(store, stream=False).model(model_call(), Model(reply("Done."), TextDelta("Done."), nothing))
    assert shown(await events(store)) == [*BEGUN, "model.started", *ENDED]


async def test_what_is_due_at_one_time_is_written_at_once(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a store makes one transaction of it; a fault of one call does not keep the others from it."""
    append, begun, counts = store.append, list[str](), list[int]()

    async def begin(batch: EventBatch) -> bool:
        begun.append(batch.context_id)
        await asyncio.sleep(0)
        counts.append(len(begun))
        return await append(batch)

    def take(name: str) -> EventBatch:
        if name == "faulty":
            raise RuntimeError("a fault of the engine")
        return EventBatch(name, [])

    monkeypatch.setattr(store, "append", begin)
    faults = list[object]()
    loop, clock = asyncio.get_running_loop(), WriteClock()
    loop.set_exception_handler(lambda _, context: faults.append(context.get("exception")))
    interval = loop.time() + 0.1  # whose first multiple is the same for all
    names = ["one", "faulty", "two", "three"]
    writers = [BatchWriter(store, partial(take, name), clock, lambda: interval) for name in names]
    for number, writer in enumerate(writers):
        writer.schedule_write(number / 100)
    await eventually(lambda: len(counts) == 3)
    assert (begun, counts) == (["one", "two", "three"], [3, 3, 3])
    assert [str(fault) for fault in faults] == ["a fault of the engine"]


@pytest.mark.usefixtures("quick")
async def test_a_store_that_fails_is_not_asked_with_each_piece(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "WRITE_RETRY_DELAY", 1e9)
    tries = list[EventBatch]()

    async def fail(batch: EventBatch) -> bool:
        tries.append(batch)
        raise StoreError("the store is locked")

    monkeypatch.setattr(store, "append", fail)

    async def wait(call: ModelCall) -> None:
        await eventually(lambda: tries)
        for _ in range(10):  # pieces, each later than the one before
            call.feed.emit(TextDelta("more"))
            await asyncio.sleep(0.005)

    await Stages(store).model(model_call(), Model(reply("Done."), TextDelta("Do"), wait))
    assert len(tries) == 1
    assert shown(await events(store)) == [*BEGUN, "model.started", *ENDED]


@pytest.mark.usefixtures("quick")
async def test_each_of_many_replies_is_written_less_often(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "MANY_REPLIES", 0)
    monkeypatch.setattr(event_feed, "BUSY_DELTA_INTERVAL", 1e9)

    async def look(call: ModelCall) -> None:
        await asyncio.sleep(0.05)
        assert [event.text for event in await events(store) if isinstance(event, ModelDelta)] == ["Do"]

    model = Model(reply("Done."), TextDelta("Do"), written(store, "Do"), TextDelta("ne."), look)
    await Stages(store).model(model_call(), model)


async def test_a_recorded_outcome_is_not_told_again(store: MemoryStore) -> None:
    stages = Stages(store)
    await stages.model(model_call(), Model(reply("Done.")))
    await stages.model(model_call(owner="run/1/2"), Model(reply("Again.")))
    assert shown(await events(store)) == [*BEGUN, "model.started", *ENDED]


async def test_an_attempt_that_fails_says_so_and_the_next_does_not_repeat_what_it_said(store: MemoryStore) -> None:
    stages = Stages(store)
    with pytest.raises(RateLimitError):
        await stages.model(model_call(), Model(RateLimitError("slow down", retry_after=2.0)))
    again = model_call(owner="run/1/2")
    again.attempt = 2
    await stages.model(again, Model(reply("Done.")))
    told = await events(store)
    assert shown(told) == [*BEGUN, "model.started", "error RateLimitError", "model.started", *ENDED]
    error = told[4]
    assert isinstance(error, ErrorEvent)
    assert (error.activity, error.final, error.retry_in, error.error) == ("perdure.model", False, 2.0, "slow down")
    assert [event.attempt for event in told] == [1, 1, 1, 1, 1, 2, 2, 2]


async def test_an_error_that_nothing_helps_is_final(store: MemoryStore) -> None:
    with pytest.raises(AuthenticationError):
        await Stages(store).model(model_call(), Model(AuthenticationError("no key")))
    last = (await events(store))[-1]
    assert isinstance(last, ErrorEvent)
    assert (last.final, last.retry_in) == (True, None)


async def test_the_operator_is_waited_for(store: MemoryStore) -> None:
    with pytest.raises(TranscriptCorruptedError):
        await Stages(store).model(model_call(head="0" * 64), Model(reply("Done.")))
    told = await events(store)
    assert [event.type for event in told[-2:]] == ["error", "run"]
    paused = told[-1]
    assert isinstance(paused, RunEvent)
    assert (paused.state, paused.agent) == ("paused", "a")
    assert (paused.reason or "").startswith("TranscriptCorruptedError: ")


@pytest.mark.usefixtures("quick")
async def test_what_a_failed_attempt_streamed_is_taken_back(store: MemoryStore) -> None:
    model = Model(RateLimitError("later"), TextDelta("Half"), written(store, "Half"))
    with pytest.raises(RateLimitError):
        await Stages(store).model(model_call(), model)
    told = await events(store)
    assert shown(told)[-3:] == ["model.delta text Half", "error RateLimitError", "model.retracted RateLimitError"]
    retracted = told[-1]
    assert isinstance(retracted, ModelRetracted)
    assert retracted.retracts == ((told[-3].seq, told[-3].seq),)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("by_run", "reason"), [(True, "Interrupted"), (False, "WorkerStopped")])
async def test_what_a_stopped_attempt_streamed_is_taken_back(store: MemoryStore, by_run: bool, reason: str) -> None:
    async def hang(call: ModelCall) -> None:
        await asyncio.Event().wait()

    stages = Stages(store, by_run=by_run)
    model = Model(reply("Done."), TextDelta("Half"), written(store, "Half"), hang)
    work = asyncio.create_task(stages.model(model_call(), model))
    await until(store, "model.delta")
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert shown(await events(store))[-1] == f"model.retracted {reason}"


@pytest.mark.usefixtures("quick")
async def test_what_a_lost_worker_streamed_is_taken_back_by_the_next(store: MemoryStore) -> None:
    gate = asyncio.Event()

    async def hang(call: ModelCall) -> None:
        await gate.wait()

    stages = Stages(store)
    lost = Model(reply("Late."), TextDelta("Half"), written(store, "Half"), hang, TextDelta(" too late"))
    slow = asyncio.create_task(stages.model(model_call(), lost))
    await until(store, "model.delta")
    again = model_call(owner="run/1/2")
    again.attempt = 2
    await stages.model(again, Model(reply("Done."), TextDelta("Whole"), written(store, "Whole")))
    gate.set()
    assert (await slow).text == "Done."
    told = await events(store)
    assert shown(told)[4:] == ["model.retracted WorkerLost", "model.started", *ENDED]


@pytest.mark.usefixtures("quick")
async def test_the_next_model_of_a_chain_takes_back_what_the_first_said(store: MemoryStore) -> None:
    restarted = Restarted("other:two", "OverloadedError", "busy")
    script: list[Step] = [
        TextDelta("Half"),
        written(store, "Half"),
        restarted,
        TextDelta("Whole"),
        written(store, "Whole"),
    ]
    seen: list[str] = []

    async def look(call: ModelCall) -> None:
        seen.extend(shown(await events(store)))

    await Stages(store).model(model_call(), Model(reply("Done."), *script, look))
    failing = ["error OverloadedError", "model.retracted OverloadedError", "model.started"]
    assert seen[4:] == ["model.delta text Half", *failing, "model.delta text Whole"]
    assert shown(await events(store)) == [*BEGUN, "model.started", *failing, *ENDED]


async def test_a_chain_that_has_streamed_nothing_takes_nothing_back(store: MemoryStore) -> None:
    model = Model(reply("Done."), TextDelta("never written"), Restarted("other:two", "OverloadedError", "busy"))
    await Stages(store, stream=False).model(model_call(), model)
    failing = ["error OverloadedError", "model.started"]
    assert shown(await events(store)) == [*BEGUN, "model.started", *failing, *ENDED]


# --- what the model is given


async def test_messages_are_told_once_however_often_they_are_given(store: MemoryStore) -> None:
    """A call that was stopped leaves them for the next, which has another number, and more of them."""
    stages = Stages(store)
    said = NewMessage(content="hi", id="m1", by="ana")
    with pytest.raises(AuthenticationError):
        await stages.model(model_call(new=(said,)), Model(AuthenticationError("no key")))
    more = model_call(op=1001, new=(said, NewMessage(content="hi"), NewMessage(content="", id="perdure:reminder")))
    more.asked_at = NEXT
    await stages.model(more, Model(reply("Done.")))
    injected = [event for event in await events(store) if event.type == "message.injected"]
    assert [(event.content, event.id, event.by) for event in injected] == [("hi", "m1", "ana"), ("hi", None, None)]


async def test_results_that_no_tool_recorded_are_told_by_the_call_that_is_given_them(store: MemoryStore) -> None:
    refused = NewResult(call_id="c1", name="pay", text="no such tool", is_error=True)
    await Stages(store).model(model_call(new=(refused,), iteration=2), Model(reply("Done.")))
    assert shown(await events(store))[0] == "tool.completed no such tool"


async def test_a_reply_with_calls_ends_no_turn(store: MemoryStore) -> None:
    asked = Call(id="c1", name="pay", arguments={"amount": 3}, disposition=RefusedCall(text="no"))
    await Stages(store).model(model_call(), Model(reply("One moment.", asked)))
    last = (await events(store))[-1]
    assert isinstance(last, ModelCompleted)
    assert [(one.id, one.name, one.arguments) for one in last.calls] == [("c1", "pay", {"amount": 3})]


async def test_a_session_waits_after_its_answer(store: MemoryStore) -> None:
    await Stages(store).model(model_call(mode="session"), Model(reply("Done.")))
    assert shown(await events(store))[-2:] == ["turn completed Done.", "run idle"]


async def test_an_answer_at_the_limit(store: MemoryStore) -> None:
    order = NewMessage(content="Finish.", id="perdure:reminder")
    call = model_call(iteration=4, new=(order,), limit=LIMIT)
    await Stages(store).model(call, Model(reply("Done.")))
    told = await events(store)
    assert [event.type for event in told] == ["limit", "model.started", "model.completed", "turn"]
    turn = told[-1]
    assert isinstance(turn, TurnEvent)
    assert (turn.finish_reason, turn.iterations) == ("limit", 4)


# --- endings


def ending(**given: Any) -> CloseCall:
    call = close_call(op=5, new=given.pop("new", ()), iteration=1, closing=RunEnding(**given))
    call.asked_at = NEXT
    return call


async def test_an_ending_tells_how_turn_and_run_ended(store: MemoryStore) -> None:
    failure = {"error_type": "AuthenticationError", "error": "no key", "response": {"iterations": 0}}
    await Stages(store).close(ending(status="failed", new=(NewMessage(content="hi"),), **failure), Inner(None))
    told = await events(store)
    assert shown(told) == [*BEGUN, "turn failed AuthenticationError", "run failed AuthenticationError"]


async def test_a_session_that_is_closed_says_nothing_of_its_last_turn_again(store: MemoryStore) -> None:
    stages = Stages(store)
    await stages.model(model_call(mode="session"), Model(reply("Done.")))
    response = {"content": "Done.", "iterations": 1, "finish_reason": "stop"}
    await stages.close(ending(status="completed", response=response), Inner(None))
    assert shown(await events(store))[-3:] == ["turn completed Done.", "run idle", "run completed"]


async def test_a_stopped_turn_ends_and_the_session_waits(store: MemoryStore) -> None:
    response = {"iterations": 0, "finish_reason": "interrupted"}
    closing = ending(status="waiting", turn="completed", response=response, new=(NewMessage(content="hi"),))
    await Stages(store).close(closing, Inner(None))
    assert shown(await events(store)) == [*BEGUN, "turn completed", "run idle"]


async def test_a_part_of_what_was_said_ends_nothing(store: MemoryStore) -> None:
    await Stages(store).close(ending(status="waiting", new=(NewMessage(content="hi"),)), Inner(None))
    assert shown(await events(store)) == BEGUN


async def test_the_limit_that_a_run_fails_with(store: MemoryStore) -> None:
    failure = {"error_type": "MaxIterationsError", "error": "too many", "response": {"iterations": 3}, "limit": LIMIT}
    await Stages(store).close(ending(status="failed", **failure), Inner(None))
    assert [event.type for event in await events(store)] == ["run", "turn", "limit", "turn", "run"]


# --- the store


@pytest.mark.usefixtures("quick")
async def test_a_store_that_is_down_only_delays(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "WRITE_RETRY_DELAY", 0.001)
    tried = asyncio.Event()

    class Down(MemoryStore):
        async def append(self, batch: EventBatch) -> bool:
            if not tried.is_set():
                tried.set()
                raise StoreError("locked")
            return await super().append(batch)

    store = Down()
    await store.open()

    async def wait(call: ModelCall) -> None:
        await tried.wait()

    script: list[Step] = [TextDelta("Ha"), wait, TextDelta("lf"), written(store, "lf")]
    await Stages(store).model(model_call(), Model(reply("Done."), *script))
    assert shown(await events(store)) == [*BEGUN, "model.started", *ENDED]


@pytest.mark.usefixtures("quick")
async def test_a_write_that_hangs_keeps_no_reply_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    hung, gate, over = asyncio.Event(), asyncio.Event(), asyncio.Event()
    taken: list[bool] = []

    class Hangs(MemoryStore):
        async def append(self, batch: EventBatch) -> bool:
            hung.set()
            await gate.wait()
            taken.append(await super().append(batch))
            over.set()
            return taken[-1]

    store = Hangs()
    await store.open()

    async def wait(call: ModelCall) -> None:
        await hung.wait()

    await Stages(store).model(model_call(), Model(reply("Done."), TextDelta("Half"), wait))
    assert shown(await events(store)) == [*BEGUN, "model.started", *ENDED]
    gate.set()
    await over.wait()
    assert taken == [False], "it came too late"
    assert shown(await events(store)) == [*BEGUN, "model.started", *ENDED]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "ahead", [[TextDelta("x" * 250)], [ToolCallDelta(n % 2, f"call_{n % 2}", "add", "") for n in range(3)]]
)
async def test_who_gets_too_far_ahead_of_the_store_is_followed_no_longer(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, ahead: list[StreamEvent]
) -> None:
    monkeypatch.setattr(event_feed, "MAX_QUEUED_CHARS", 250)
    schedule_write, written_for = BatchWriter.schedule_write, []
    monkeypatch.setattr(BatchWriter, "schedule_write", lambda *on: (written_for.append("more"), schedule_write(*on)))

    async def overtaken(call: ModelCall) -> None:
        written_for.clear()

    model = Model(reply("Done."), TextDelta("Half"), written(store, "Half"), *ahead, overtaken, TextDelta("more"))
    await Stages(store).model(model_call(), model)
    assert shown(await events(store)) == [*BEGUN, "model.started", *ENDED]
    assert not written_for


async def test_a_store_that_fails_is_not_told_that_it_does(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is the call's own; that it could not be recorded is a line of the log."""
    caplog.set_level(logging.DEBUG, "perdure.worker")
    monkeypatch.setattr(event_feed, "LAST_WRITE_TIMEOUT", 0.5)

    async def fails(call: ModelCall) -> None:
        store.failure = StoreError("gone")

    with pytest.raises(RateLimitError):
        await Stages(store).model(model_call(), Model(RateLimitError("later"), fails))
    assert "events could not be written: StoreError: gone" in caplog.text


async def test_nothing_is_told_to_a_store_that_is_not_the_runs(store: MemoryStore) -> None:
    with pytest.raises(StoreMismatchError):
        await Stages(store).model(model_call(store_id="other"), Model(reply("Done.")))
    assert await events(store) == []
