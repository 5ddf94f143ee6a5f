"""The events of tool calls: the claim says that one begins, its outcome what it came to; between them is progress."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from perdure.calls import event_feed
from perdure.calls.call import ModelCall, ToolCall
from perdure.calls.failures import FailuresStage
from perdure.calls.inline_tools import InlineStage
from perdure.errors import AgentNotFoundError
from perdure.testing.store import MemoryStore
from perdure.types.events import ErrorEvent, ToolCompleted, ToolProgress, ToolStarted
from perdure.types.messages import INLINE_BYTES
from perdure.types.tool_calls import ActivityCall, Call, Question
from perdure.types.wire import NewResult, ToolOutput
from tests.unit.calls.build import Inner, compose, inline, model_call, remind_call, reply, tool_call
from tests.unit.calls.event_fixtures import ASKED_AT, NEXT, Model, Stages, events, shown, until


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "PROGRESS_INTERVAL", 0.001)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


async def test_a_tool_begins_and_ends(store: MemoryStore) -> None:
    await Stages(store).tool(tool_call(), Inner("paid"))
    started, completed = await events(store)
    assert isinstance(started, ToolStarted)
    assert (started.call_id, started.name, started.arguments) == ("c1", "pay", {"amount": 3})
    assert isinstance(completed, ToolCompleted)
    assert (completed.content, completed.is_error) == ("paid", False)


async def test_a_recorded_outcome_is_not_told_again(store: MemoryStore) -> None:
    stages = Stages(store)
    await stages.tool(tool_call(), Inner("paid"))
    await stages.tool(tool_call(owner="run/2/2"), Inner("paid"))
    assert shown(await events(store)) == ["tool.started", "tool.completed paid"]


async def test_a_tool_whose_worker_was_lost(store: MemoryStore) -> None:
    await store.claim(tool_call().key, "lost")
    await Stages(store).tool(tool_call(), Inner("paid"))
    (completed,) = await events(store)
    assert isinstance(completed, ToolCompleted)
    assert completed.is_error
    assert completed.content.startswith("OutcomeUnknown")


async def test_an_idempotent_one_begins_again(store: MemoryStore) -> None:
    await store.claim(tool_call(idempotent=True).key, "lost")
    await Stages(store).tool(tool_call(idempotent=True, owner="run/2/2"), Inner("paid"))
    assert shown(await events(store)) == ["tool.started", "tool.completed paid"]


async def test_large_arguments_and_results_are_kept_elsewhere(store: MemoryStore) -> None:
    large = "x" * (INLINE_BYTES + 1)
    await Stages(store).tool(tool_call(arguments={"text": large}), Inner(large))
    started, completed = await events(store)
    assert isinstance(started, ToolStarted)
    assert started.arguments is None
    assert isinstance(completed, ToolCompleted)
    assert completed.content == ""
    assert completed.blob is not None
    assert await store.read_blobs([completed.blob.hash]) == {completed.blob.hash: large.encode()}


async def test_a_result_is_told_once_by_whoever_says_it_first(store: MemoryStore) -> None:
    """The loop closes a call that was interrupted; its worker had recorded its outcome all the same."""
    stages = Stages(store)
    asked = Call(id="c1", name="pay", arguments={}, disposition=ActivityCall(timeout=60))
    head = (await stages.model(model_call(), Model(reply("", asked)))).head
    await stages.tool(tool_call(head=head), Inner("paid"))
    stopped = NewResult(call_id="c1", name="pay", text="Interrupted", is_error=True)
    again = model_call(op=9, iteration=2, head=head, new=(stopped,))
    again.asked_at = NEXT
    await stages.model(again, Model(reply("Done.")))
    told = [event for event in await events(store) if event.type == "tool.completed"]
    assert shown(told) == ["tool.completed paid"]


@pytest.mark.usefixtures("quick")
async def test_progress_is_there_while_the_tool_runs(store: MemoryStore) -> None:
    async def work(call: ToolCall) -> ToolOutput:
        await asyncio.to_thread(call.feed.report_progress, "half", {"done": 1})
        said = await until(store, "tool.progress")
        assert isinstance(said, ToolProgress)
        assert (said.message, said.data, said.call_id, said.name) == ("half", {"done": 1}, "c1", "pay")
        return ToolOutput(key=call.key, content="paid")

    await Stages(store).tool(tool_call(), work)
    assert shown(await events(store)) == ["tool.started", "tool.progress half", "tool.completed paid"]


async def test_a_quick_tool_says_its_last_word_with_its_outcome(store: MemoryStore) -> None:
    async def work(call: ToolCall) -> ToolOutput:
        for n in range(1000):
            call.feed.report_progress(str(n), None)
        return ToolOutput(key=call.key, content="paid")

    await Stages(store).tool(tool_call(), work)
    assert shown(await events(store)) == ["tool.started", "tool.progress 999", "tool.completed paid"]
    assert len(store.commits) == 1


@pytest.mark.parametrize("data", ["x" * INLINE_BYTES, nested(300)], ids=["large", "deep"])
async def test_progress_that_cannot_be_kept_is_refused(store: MemoryStore, data: Any) -> None:
    """It would keep the outcome from being recorded."""

    async def work(call: ToolCall) -> ToolOutput:
        with pytest.raises(ValueError, match=r"progress|depth"):
            call.feed.report_progress("half", data)
        return ToolOutput(key=call.key, content="paid")

    await Stages(store).tool(tool_call(), work)
    assert shown(await events(store)) == ["tool.started", "tool.completed paid"]


async def test_what_is_said_after_the_end_is_dropped(store: MemoryStore) -> None:
    said: list[Any] = []

    async def work(call: ToolCall) -> ToolOutput:
        said.append(call.feed.report_progress)
        return ToolOutput(key=call.key, content="paid")

    await Stages(store).tool(tool_call(), work)
    said[0]("late", None)
    assert shown(await events(store)) == ["tool.started", "tool.completed paid"]


async def test_a_tool_call_that_could_not_begin_says_why(store: MemoryStore) -> None:
    stages = compose([FailuresStage(store)], Inner(AgentNotFoundError("who?")), "tool")
    with pytest.raises(AgentNotFoundError):
        await stages(tool_call())
    (error,) = await events(store)
    assert isinstance(error, ErrorEvent)
    assert (error.activity, error.call_id, error.final) == ("tool.pay", "c1", False)


async def test_a_reminder_that_fails_makes_no_tool_late(store: MemoryStore) -> None:
    """It is scheduled while the tool runs; the tool asks after it."""
    reminder = replace(remind_call(), asked_at=NEXT)
    with pytest.raises(AgentNotFoundError):
        await compose([FailuresStage(store)], Inner(AgentNotFoundError("who?")))(reminder)

    async def ask(call: ToolCall) -> ToolOutput:
        return ToolOutput(key=call.key, status="asking", question=Question(text="How much?"))

    await Stages(store).tool(replace(tool_call(), asked_at=ASKED_AT), ask)
    assert [wait.kind for wait in await store.list_waits()] == ["question"]


@pytest.mark.usefixtures("quick")
async def test_an_inline_tool_is_told_behind_its_reply(store: MemoryStore) -> None:
    stages = Stages(store)

    async def work(call: ToolCall) -> ToolOutput:
        call.feed.report_progress("looking", None)
        await until(store, "tool.progress")
        return ToolOutput(key=call.key, content="seen")

    async def asked(call: ModelCall) -> Any:
        return await stages.model(call, Model(reply("", inline())))

    await compose([InlineStage(lambda call: stages.tool(call, work))], asked)(model_call())
    assert shown(await events(store))[3:] == [
        "model.started",
        "model.completed",
        "tool.started",
        "tool.progress looking",
        "tool.completed seen",
    ]
