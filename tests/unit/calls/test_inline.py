"""Inline tools: each with a journal entry of its own, within a budget, and safe to interrupt anywhere."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.calls.call import ToolCall
from perdure.calls.inline_tools import INLINE_SECONDS, InlineStage
from perdure.calls.journal import JournalStage
from perdure.calls.journal_keys import build_tool_key
from perdure.loop.apply import apply_model
from perdure.loop.decide import CallModel
from perdure.ports.store import MemoryWrite
from perdure.testing.store import MemoryStore
from perdure.types.limits import LimitUse
from perdure.types.plain_json import measure_json
from perdure.types.tool_calls import ActivityCall, Call, InlineCall, Question
from perdure.types.wire import OUTPUT_BYTES, ToolInput, ToolOutput
from tests.unit.calls.build import FACTS, Inner, compose, inline, model_call, output
from tests.unit.loop.build import opened


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def kinds(calls: tuple[Call, ...]) -> list[str]:
    return [call.disposition.kind for call in calls]


def through(store: MemoryStore, inner: Any) -> Any:
    return compose([JournalStage(store)], inner, "tool")


async def test_inline_calls_are_replaced_by_their_outcomes_and_others_stay(store: MemoryStore) -> None:
    usual = Call(id="c2", name="pay", arguments={}, disposition=ActivityCall(timeout=60))
    stage = InlineStage(through(store, Inner("one", "two")))
    answer = await stage.model(model_call(), Inner(output("", inline("c1"), usual, inline("c3"))))
    assert kinds(answer.calls) == ["inline", "activity", "inline"]
    first, _, third = (call.disposition for call in answer.calls)
    assert isinstance(first, InlineCall)
    assert isinstance(third, InlineCall)
    assert (first.content, third.content) == ("one", "two")
    assert set(await store.find_outcomes([first.key, third.key])) == {first.key, third.key}


async def test_a_retry_finds_each_of_them(store: MemoryStore) -> None:
    inner = Inner("one", "two", "three")
    stage = InlineStage(through(store, inner))
    asked = Inner(output("", inline("c1"), inline("c2")))
    first = await stage.model(model_call(), asked)
    again = await stage.model(model_call(owner="run/1/2"), asked)
    assert again.calls == first.calls
    assert len(inner.calls) == 2


async def test_what_the_tool_is_told(store: MemoryStore) -> None:
    inner = Inner("one")
    await InlineStage(inner).model(model_call(op=4, iteration=3), Inner(output("", inline("c9", idempotent=True))))
    seen: ToolCall = inner.calls[0]
    assert seen.input.call_id == "c9"
    assert seen.input.iteration == 3
    assert seen.input.idempotent
    assert seen.arguments == {"path": "c9"}
    assert seen.key == build_tool_key(seen.input)
    assert seen.owner == "run/1/1/c9"


async def test_what_has_not_begun_within_the_budget_becomes_an_ordinary_call(store: MemoryStore) -> None:
    clock = Clock()

    async def slow(call: ToolCall) -> ToolOutput:
        clock.now += INLINE_SECONDS / 2 + 1
        return ToolOutput(key=call.key, content="done")

    stage = InlineStage(slow, clock)
    answer = await stage.model(model_call(), Inner(output("", *(inline(f"c{n}") for n in range(4)))))
    assert kinds(answer.calls) == ["inline", "inline", "activity", "activity"]


async def test_a_cancellation_between_two_tools_starts_no_further_one(store: MemoryStore) -> None:
    """A tool that is cancelled by its run comes back with a result that says so, and raises nothing."""
    begun = asyncio.Event()

    async def cancelled(call: ToolCall) -> ToolOutput:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return ToolOutput(key=call.key, content="Cancelled: …", is_error=True, status="cancelled")
        raise AssertionError

    stage = InlineStage(through(store, cancelled))
    running = asyncio.ensure_future(stage.model(model_call(), Inner(output("", inline("c1"), inline("c2")))))
    await begun.wait()
    running.cancel()
    answer = await running
    assert kinds(answer.calls) == ["inline", "activity"]
    assert store.run_sql("SELECT count(*) FROM journal") == [(1,)]


async def test_a_worker_that_stops_in_the_middle_hands_the_rest_over_and_nothing_runs_twice(
    store: MemoryStore,
) -> None:
    """The tool that was under way becomes an activity under the same journal key: begun, and not run again."""
    gate = asyncio.Event()
    inner = Inner("one", gate=gate)
    stage = InlineStage(through(store, inner))
    task = model_call(op=5)
    running = asyncio.ensure_future(stage.model(task, Inner(output("", inline("c1"), inline("c2")))))
    await inner.entered.wait()
    running.cancel()
    answer = await running
    assert kinds(answer.calls) == ["activity", "activity"]

    state = opened(agent="a")
    state.op = 5
    apply_model(state, CallModel((), 0), answer)
    later = Inner("again")
    outputs = [await through(store, later)(as_activity(pending)) for pending in state.calls]
    assert [output.status for output in outputs] == ["unknown", "done"]
    assert [call.input.call_id for call in later.calls] == ["c2"]


def as_activity(pending: Any) -> ToolCall:
    """The call as the workflow makes an activity of it."""
    call = pending.call
    given = {**FACTS, "op": pending.op, "call_id": call.id, "name": call.name, "arguments": call.arguments}
    return ToolCall(ToolInput(**given), owner="run/9/1")


async def test_an_error_of_the_engine_is_no_result(store: MemoryStore) -> None:
    stage = InlineStage(Inner(RuntimeError("bug")))
    with pytest.raises(RuntimeError, match="bug"):
        await stage.model(model_call(), Inner(output("", inline("c1"))))


async def test_results_that_are_too_large_together_are_there_by_key_alone(store: MemoryStore) -> None:
    text = "x" * (OUTPUT_BYTES // 3)
    stage = InlineStage(through(store, Inner(text)))
    answer = await stage.model(model_call(), Inner(output("", *(inline(f"c{n}") for n in range(5)))))
    dispositions = [call.disposition for call in answer.calls]
    contents = [how.content for how in dispositions if isinstance(how, InlineCall)]
    assert len(contents) == 5
    assert contents[0] is not None or OUTPUT_BYTES // 3 > 32 * 1024  # then each is a blob
    assert sum(len(content or "") for content in contents) <= OUTPUT_BYTES
    found = await store.find_outcomes([how.key for how in dispositions if isinstance(how, InlineCall)])
    assert len(found) == 5


async def test_24_cyrillic_results_of_16_k_fit_into_history_as_they_are_escaped_there(store: MemoryStore) -> None:
    stage = InlineStage(through(store, Inner(*["ж" * 16_000] * 24)))
    answer = await stage.model(model_call(), Inner(output("", *(inline(f"c{n}") for n in range(24)))))
    assert kinds(answer.calls) == ["inline"] * 24
    assert measure_json(answer.model_dump(mode="json", exclude_none=True)) < OUTPUT_BYTES * 1.1


async def test_a_reply_without_inline_calls_is_passed_on(store: MemoryStore) -> None:
    answer = output("text")
    assert await InlineStage(Inner("never")).model(model_call(), Inner(answer)) is answer


async def test_a_reply_that_was_to_finish_runs_nothing() -> None:
    """The loop tells the model that its calls were not run."""
    tool = Inner("never")
    answer = await InlineStage(tool).model(
        model_call(limit=LimitUse(name="iterations", scope="turn", allowed=1, used=1)), Inner(output("", inline("c1")))
    )
    assert kinds(answer.calls) == ["activity"]
    assert tool.calls == []


async def test_one_that_asks_becomes_a_call_that_finds_its_question(store: MemoryStore) -> None:
    ran: list[str] = []

    async def asks(call: ToolCall) -> ToolOutput:
        ran.append(call.key)
        call.hook_writes.append(MemoryWrite("n", "k", b"1"))
        return ToolOutput(key=call.key, status="asking", question=Question(text="Sure?"))

    stage = InlineStage(through(store, asks))
    answer = await stage.model(model_call(op=5), Inner(output("", inline("c1"))))
    (how,) = (call.disposition for call in answer.calls)
    assert isinstance(how, ActivityCall)
    assert not how.inline

    state = opened(agent="a")
    state.op = 5
    apply_model(state, CallModel((), 0), answer)
    asked = await through(store, asks)(as_activity(state.calls[0]))
    assert (asked.status, asked.question, len(ran)) == ("asking", Question(text="Sure?"), 1)
    assert await store.recall("n", "k") is None
