"""Continue-as-new, at any point and as often as it likes, loses nothing and shows nowhere. Neither does a reset."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

from perdure import Agent, Client, Run, tool
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from tests.support.checks import assert_closed, results, users
from tests.support.engine import Engine
from tests.support.ledger import Ledger
from tests.support.scripts import Gate, replied
from tests.support.wait import eventually

pytestmark = pytest.mark.server

EVENTS = 20
"""``max_history_events``: two or three iterations."""


async def chain(client: Client, run: Run) -> list[str]:
    """The run ids of all executions, the first one first."""
    ids: list[str] = []
    execution: str | None = (await run.handle.describe()).run_id
    while execution:
        ids.insert(0, execution)
        history = await client.temporal.get_workflow_handle(run.id, run_id=execution).fetch_history()
        execution = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    return ids


@tool
async def step(n: int) -> str:
    """A step."""
    return f"step {n}"


async def test_ten_messages_sent_meanwhile_arrive_once_and_in_order(engine: Engine) -> None:
    def reply(request: ModelRequest) -> Any:
        done = replied(request) >= 12 and len(users(request.messages)) == 11
        return "Done." if done else call("step", n=replied(request))

    provider = ScriptedProvider(reply)
    async with engine.served(Agent("stepper", provider, tools=[step], max_iterations=1000)) as client:
        run = await client.start("stepper", "Go.", max_history_events=EVENTS)
        async for said in _paced(provider):
            # Each of them twice under one id, so that some of the second ones come after the boundary.
            await run.inject(f"message {said}", id=f"m{said}")
            if said:
                await run.inject(f"message {said - 1} again", id=f"m{said - 1}")
            if said == 9:
                break
        response = await run.result()
        executions = await chain(client, run)
    assert len(executions) >= 3
    assert users(response.messages) == ["Go.", *(f"message {n}" for n in range(10))]
    assert [message.id for message in response.messages if message.role == "user"][1:] == [f"m{n}" for n in range(10)]
    assert_closed(response.messages)
    assert results(response.messages) == [f"step {n}" for n in range(response.iterations - 1)]


async def _paced(provider: ScriptedProvider) -> AsyncIterator[int]:
    """0, 1, 2, …, each as soon as the model has been asked once more."""
    for n in range(10):
        yield n
        asked = len(provider.requests)
        await eventually(lambda before=asked: len(provider.requests) > before)


@pytest.mark.slow
async def test_a_flood_of_messages_at_the_boundary(engine: Engine) -> None:
    repeated = asyncio.Event()  # a repeated message to a run that has ended would be refused

    def reply(request: ModelRequest) -> Any:
        whole = len(users(request.messages)) == 101 and repeated.is_set()
        # Where a model is slow, all of them come in few iterations.
        return "Done." if whole and replied(request) >= 12 else call("step", n=replied(request))

    provider = ScriptedProvider(reply)
    async with engine.served(Agent("flooded", provider, tools=[step], max_iterations=1000)) as client:
        run = await client.start("flooded", "Go.", max_history_events=EVENTS)
        for first in range(0, 100, 10):
            await asyncio.gather(*(run.inject(str(n), id=str(n)) for n in range(first, first + 10)))
            await asyncio.gather(*(run.inject(str(n), id=str(n)) for n in range(first, first + 10)))
        repeated.set()
        response = await run.result()
        assert len(await chain(client, run)) >= 3
    assert sorted(map(int, users(response.messages)[1:])) == list(range(100))
    assert_closed(response.messages)


async def test_results_of_parallel_calls_are_carried_over(engine: Engine) -> None:
    @tool(inline=True)
    async def quick(n: int) -> str:
        """Quick."""
        return f"quick {n}"

    def reply(request: ModelRequest) -> Any:
        n = replied(request)
        if n == 8:
            return "Done."
        return [call("step", n=3 * n), call("quick", n=3 * n + 1), call("nothing"), call("step", n=3 * n + 2)]

    provider = ScriptedProvider(reply)
    async with engine.served(Agent("parallel", provider, tools=[step, quick], max_iterations=1000)) as client:
        run = await client.start("parallel", "Go.", max_history_events=EVENTS)
        response = await run.result()
        assert len(await chain(client, run)) >= 4
    assert_closed(response.messages)
    unknown = "tool not found: nothing (there is: step, quick)"
    assert results(response.messages) == [
        text for n in range(8) for text in (f"step {3 * n}", f"quick {3 * n + 1}", unknown, f"step {3 * n + 2}")
    ]
    assert response.calls == response.iterations == 9
    assert response.usage.output_tokens == sum(m.usage.output_tokens for m in response.messages if m.usage)


async def test_a_message_that_is_sent_before_the_boundary_counts_behind_it(engine: Engine) -> None:
    """The ids that were seen, and a message that no call was given yet, are part of what is carried over."""
    gate = Gate()

    async def reply(request: ModelRequest) -> Any:
        if replied(request) == 6:
            await gate()
        return "Done." if replied(request) >= 9 else call("step", n=replied(request))

    agent = Agent("carrier", ScriptedProvider(reply), tools=[step], max_iterations=1000)
    async with engine.served(agent) as client:
        run = await client.start("carrier", "Go.", max_history_events=EVENTS)
        await run.inject("early", id="early")
        await eventually(lambda: gate.entered)
        executions = len(await chain(client, run))
        assert executions >= 2
        await run.inject("early", id="early")
        await run.inject("late", id="late")
        gate.open()
        response = await run.result()
        assert len(await chain(client, run)) > executions
    assert users(response.messages) == ["Go.", "early", "late"]


@pytest.mark.fault("Temporal", "The workflow is reset with Temporal's own tools.", "What was paid for is used again.")
async def test_a_reset_uses_what_was_paid(engine: Engine) -> None:
    ledger = Ledger(engine.folder / "effects.jsonl")

    @tool
    async def act(n: int) -> str:
        """Act, once."""
        ledger.add("act", str(n))
        return f"acted {n}"

    provider = ScriptedProvider(lambda r: "Done." if replied(r) == 4 else call("act", n=replied(r)))
    async with engine.served(Agent("actor", provider, tools=[act])) as client:
        run = await client.start("actor", "Go.")
        first = await run.result()
        assert len(provider.requests) == 5
        await _reset(client, run)
        # A handle of the first execution would still answer with the first result.
        second = await client.run(run.id).result()
        row = await (await client.store()).get_run(run.id)
    assert len(provider.requests) == 5, "a model call was paid twice"
    assert set(ledger.counts("act").values()) == {1}
    assert second.head == first.head
    assert second.messages == first.messages
    assert row is not None
    assert (row.status, row.head) == ("completed", first.head)


async def test_a_reset_of_a_later_execution_uses_what_was_paid(engine: Engine) -> None:
    provider = ScriptedProvider(lambda r: "Done." if replied(r) == 12 else call("step", n=replied(r)))
    async with engine.served(Agent("stepper", provider, tools=[step])) as client:
        run = await client.start("stepper", "Go.", max_history_events=EVENTS)
        first = await run.result()
        assert len(await chain(client, run)) >= 3
        await _reset(client, run)
        second = await client.run(run.id).result()
    assert len(provider.requests) == 13
    assert second.head == first.head


async def _reset(client: Client, run: Run) -> None:
    """Back to the first workflow task of the last execution."""
    described = await client.run(run.id).handle.describe()
    handle = client.temporal.get_workflow_handle(run.id, run_id=described.run_id)
    completed = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    event = next(event.event_id for event in (await handle.fetch_history()).events if event.event_type == completed)
    await client.temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=run.id, run_id=described.run_id),
            reason="test",
            workflow_task_finish_event_id=event,
            request_id=f"reset-{described.run_id}",
        )
    )
