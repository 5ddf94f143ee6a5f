"""A worker that takes over a run from another one loads the same workflow tasks: each ends with a command.

Temporal's SDK merges a task without a command with the next one when it loads a run from history, but not in a later
replay: docs/decisions/028-commands-of-a-task.md. No process is killed; the second worker starts with an empty cache.
"""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowUpdateStage
from temporalio.worker._workflow_instance import _WorkflowLogicFlag

from perdure import Agent, Run, tool
from perdure.errors import RunCancelledError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call, replay
from tests.support.engine import Engine
from tests.support.histories import idle_tasks
from tests.support.scripts import Gate
from tests.support.wait import eventually

pytestmark = pytest.mark.server

COMPLETED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED


def chatting(gate: Gate | None = None) -> Agent:
    async def reply(request: ModelRequest) -> Any:
        said = [message.text for message in request.messages if message.role == "user"]
        if gate is not None and len(said) == 2:
            await gate()
        return f"answer to {said[-1]}"

    return Agent("chatting", ScriptedProvider(reply))


async def tasks(run: Run) -> int:
    """Workflow tasks that were completed."""
    return sum(event.event_type == COMPLETED for event in (await run.handle.fetch_history()).events)


async def test_the_first_message_of_a_session_finds_another_worker(engine: Engine) -> None:
    async with engine.served(chatting()) as client:
        run = await client.start("chatting", mode="session")
        await eventually(lambda: tasks(run), what="the first task")
    async with engine.served(chatting()) as client:
        turn = await client.send("chatting", "hello", id=run.id)
        assert (await turn.result()).content == "answer to hello"
        await replay(client=client, id=run.id)  # raises where it does not
        assert not [task for task in idle_tasks((await run.handle.fetch_history()).events) if task.received]


async def test_a_message_after_a_turn_finds_another_worker(engine: Engine) -> None:
    gate = Gate()
    async with engine.served(chatting(gate)) as client:
        run = await client.start("chatting", "one", mode="session")  # whose end sets search attributes
        await run.turn().result()
        first = await client.send("chatting", "two", id=run.id)
        await eventually(lambda: gate.entered)
        before = await tasks(run)
        await run.handle.signal("probe")

        async def one_more() -> bool:
            return await tasks(run) > before

        await eventually(one_more, what="the task of the signal")
        gate.open()
        await first.result()
    async with engine.served(chatting(gate)) as client:
        second = await client.send("chatting", "three", id=run.id)
        assert second.task_id != first.task_id, "the turn had ended"
        assert (await second.result()).content == "answer to three"
        assert (await first.result()).content == "answer to two"
        await replay(client=client, id=run.id)
        assert not [task for task in idle_tasks((await run.handle.fetch_history()).events) if task.received]


async def test_a_signal_after_a_cancellation_also_where_the_sdk_applies_a_task_as_one_batch(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default of later SDKs, where each wait that a cancellation of the run comes into raises it at its end."""
    flags = frozenset(_WorkflowLogicFlag)
    monkeypatch.setattr("temporalio.worker._workflow._DEFAULT_ENABLED_WORKFLOW_LOGIC_FLAGS", flags)
    gate, closing = Gate(), Gate()

    @tool
    async def hang() -> str:
        """Take a while to stop."""
        try:
            await gate()
        finally:
            await closing()
        return "hung"

    async with engine.served(Agent("chatting", ScriptedProvider([call("hang")]), tools=[hang])) as client:
        run = await client.start("chatting", "Go.")
        await eventually(lambda: gate.entered)
        wait = await run.handle.start_update("wait_for_turn", wait_for_stage=WorkflowUpdateStage.ACCEPTED)
        await run.handle.cancel()
        await eventually(lambda: closing.entered, what="the tool stops")
        before = await tasks(run)
        await run.handle.signal("probe")

        async def one_more() -> bool:
            return await tasks(run) > before

        await eventually(one_more, what="the task of the signal")
        closing.open()
        assert (await wait.result())["state"] == "cancelled"
        with pytest.raises(RunCancelledError):
            await run.result()
        await replay(client=client, id=run.id)
        assert not [task for task in idle_tasks((await run.handle.fetch_history()).events) if task.received]
