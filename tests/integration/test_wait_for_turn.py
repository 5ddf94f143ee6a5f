"""A plain client waits for a turn's answer with an update, which holds up neither the turn nor other clients."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WithStartWorkflowOperation, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker as TemporalWorker

from perdure import Agent, tool
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call, replay
from perdure.worker import PerdurePlugin
from perdure.workflows import handlers
from tests.support.checks import users
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually

Handle = WorkflowHandle[Any, Any]


def gated(gate: Gate, **options: Any) -> Agent:
    """Answers each message once the gate is open."""

    async def reply(request: ModelRequest) -> str:
        await gate()
        return f"You said {users(request.messages)[-1]}."

    return Agent("clerk", ScriptedProvider(reply), **options)


async def wait(handle: Handle, *arguments: Any) -> Any:
    return await handle.execute_update("wait_for_turn", args=list(arguments))


async def refusal(handle: Handle, *arguments: Any) -> ApplicationError:
    with pytest.raises(WorkflowUpdateFailedError) as failed:
        await wait(handle, *arguments)
    assert isinstance(failed.value.cause, ApplicationError)
    return failed.value.cause


async def waiting(handle: Handle, count: int, *arguments: Any) -> list[asyncio.Task[Any]]:
    """Clients that wait for a turn, which the run has accepted."""
    before = await _accepted(handle)
    tasks = [asyncio.create_task(wait(handle, *arguments)) for _ in range(count)]

    async def accepted() -> bool:
        return await _accepted(handle) == before + count

    await eventually(accepted, what="the waits")
    return tasks


async def _accepted(handle: Handle) -> int:
    history = await handle.fetch_history()
    return sum(event.HasField("workflow_execution_update_accepted_event_attributes") for event in history.events)


@pytest.fixture(autouse=True)
def waits_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """So long that no answer comes from their end."""
    monkeypatch.setattr(handlers, "WAIT_SECONDS", 3600)


@pytest.fixture
def waits_are_short(waits_are_long: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "WAIT_SECONDS", 0.1)


async def test_the_answer_comes_as_soon_as_the_turn_has_it(engine: Engine) -> None:
    gate = Gate()
    async with engine.served(gated(gate)) as client:
        turn = await client.send("clerk", "One", id=engine.task_queue)
        handle = client.run(engine.task_queue).handle
        clients = [
            asyncio.create_task(wait(handle, *named)) for named in ([{"task_id": turn.task_id}], [turn.task_id], [])
        ]
        await eventually(lambda: gate.entered)
        gate.open()
        first, *others = await asyncio.gather(*clients)
        assert (first["task_id"], first["state"]) == (turn.task_id, "completed")
        assert first["response"]["content"] == "You said One."
        assert others == [first, first]
        assert first == await handle.query("turn", turn.task_id)
        assert await wait(handle, turn.task_id) == first  # of a turn that has ended, at once


async def test_a_run_that_ends_with_its_answer_answers_the_client_that_waits(engine: Engine) -> None:
    gate = Gate()
    async with engine.served(gated(gate)) as client:
        run = await client.start("clerk", "One")
        await eventually(lambda: gate.entered)
        client_waits = asyncio.create_task(wait(run.handle))
        gate.open()
        assert (await client_waits)["response"]["content"] == "You said One."
        assert (await run.result()).content == "You said One."


async def test_a_turn_that_takes_longer_is_running(engine: Engine, waits_are_short: None) -> None:
    gate = Gate()
    async with engine.served(gated(gate)) as client:
        turn = await client.send("clerk", "One", id=engine.task_queue)
        handle = client.run(engine.task_queue).handle
        for _ in range(2):
            assert await wait(handle) == {"task_id": turn.task_id, "state": "running"}
        gate.open()
        assert (await turn.result()).content == "You said One."


async def test_how_a_turn_ends_otherwise(engine: Engine) -> None:
    gate = Gate()
    async with engine.served(gated(gate)) as client:
        session = await client.start("clerk", mode="session")
        assert await wait(session.handle) == {"task_id": "", "state": "unknown"}  # no turn yet
        assert await wait(session.handle, "another") == {"task_id": "another", "state": "unknown"}
        await session.send("One")
        await eventually(lambda: gate.entered)
        client_waits = asyncio.create_task(wait(session.handle))
        await session.interrupt()
        assert (await client_waits)["response"]["finish_reason"] == "interrupted"
        await session.send("Two")
        await eventually(lambda: gate.entered == 2)
        client_waits = asyncio.create_task(wait(session.handle))
        await session.cancel()
        assert (await client_waits)["state"] == "cancelled"


async def test_a_run_that_fails_names_the_error(engine: Engine) -> None:
    gate = Gate()

    async def reply(request: ModelRequest) -> Any:
        await gate()
        return call("look")

    async with engine.served(Agent("clerk", ScriptedProvider(reply), max_iterations=1, on_limit="error")) as client:
        run = await client.start("clerk", "One")
        await eventually(lambda: gate.entered)
        client_waits = asyncio.create_task(wait(run.handle))
        gate.open()
        turn = await client_waits
        assert (turn["state"], turn["error_type"]) == ("failed", "MaxIterationsError")


async def test_a_fourth_client_is_refused_and_messages_still_come_through(engine: Engine) -> None:
    gate = Gate()
    async with engine.served(gated(gate)) as client:
        turn = await client.send("clerk", "One", id=engine.task_queue)
        run = client.run(engine.task_queue)
        clients = [asyncio.create_task(wait(run.handle)) for _ in range(5)]
        refused, _ = await asyncio.wait(clients, return_when=asyncio.FIRST_COMPLETED)
        while len(refused) < 2:
            done, _ = await asyncio.wait(set(clients) - refused, return_when=asyncio.FIRST_COMPLETED)
            refused |= done
        for task in refused:
            error = task.exception()
            assert isinstance(error, WorkflowUpdateFailedError)
            assert isinstance(error.cause, ApplicationError)
            assert error.cause.type == "TooManyWaits"
            assert 'the update "read"' in error.cause.message
        joined = await run.send("Two")
        assert joined.task_id == turn.task_id
        gate.open()
        answers = await asyncio.gather(*(task for task in clients if task not in refused))
        assert [answer["response"]["content"] for answer in answers] == ["You said Two."] * 3


async def test_a_run_takes_a_limited_number_of_waits(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "MAX_WAITS_OF_EXECUTION", 2)
    async with engine.served(Agent("clerk", ScriptedProvider(["One."]))) as client:
        turn = await client.send("clerk", "Go", id=engine.task_queue)
        await turn.result()
        handle = client.run(engine.task_queue).handle
        for _ in range(2):
            assert (await wait(handle))["state"] == "completed"
        assert (await refusal(handle)).type == "TooManyWaits"
        assert (await client.run(handle.id).status()).state == "idle"


NESTED: Any = None
for _ in range(100):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    "argument",
    [
        *(5, True, 1.5, ["a"], {"task_id": 7}, {"task_id": {"a": 1}}, {"task_id": NESTED}),
        *({"task_id": "a", "more": "x"}, "x" * 201, {"task_id": "ж" * 300_000}),
    ],
    ids=lambda argument: str(argument)[:30],
)
async def test_what_names_no_turn_is_refused(engine: Engine, argument: Any) -> None:
    async with engine.served(Agent("clerk", ScriptedProvider(["One."]))) as client:
        turn = await client.send("clerk", "Go", id=engine.task_queue)
        await turn.result()
        error = await refusal(client.run(engine.task_queue).handle, argument)
        assert error.type == "InvalidInputError"
        assert "task_id" in error.message


async def test_a_long_id_that_is_read_comes_back_short(engine: Engine) -> None:
    """Its answer would be larger than what Temporal takes."""
    async with engine.served(Agent("clerk", ScriptedProvider(["One."]))) as client:
        turn = await client.send("clerk", "Go", id=engine.task_queue)
        await turn.result()
        handle = client.run(engine.task_queue).handle
        long = "ж" * 300_000
        assert await handle.query("turn", long) == {"task_id": long[:200], "state": "unknown"}


@pytest.mark.server
class TestOnAServer:
    async def test_a_run_that_continues_as_new_answers_at_once(self, engine: Engine) -> None:
        """In the middle of a turn, whose history is long."""
        gate = Gate()

        async def reply(request: ModelRequest) -> Any:
            if len(users(request.messages)) == 1:
                await gate()
                return call("look")
            return "Done."

        @tool
        async def look() -> str:
            """Look."""
            return "seen"

        agent = Agent("clerk", ScriptedProvider(reply), tools=[look])
        async with engine.served(agent) as client:
            handle = await (await engine.temporal()).start_workflow(
                "AgentWorkflow",
                {"agent": "clerk", "message": "go", "max_history_events": 11},
                id=engine.task_queue,
                task_queue=engine.task_queue,
            )
            await eventually(lambda: gate.entered)
            first = await handle.describe()
            execution = client.temporal.get_workflow_handle(handle.id, run_id=first.run_id)
            clients = await waiting(execution, 3)
            gate.open()
            assert {one["state"] for one in await asyncio.gather(*clients)} == {"running"}
            await handle.signal("inject_user_message", "stop")
            assert (await handle.result())["content"] == "Done."
            await replay(client=client, id=handle.id)

    async def test_a_worker_that_takes_over_goes_on_with_the_waits(self, engine: Engine) -> None:
        gate = Gate()
        agent = gated(gate)
        async with engine.served(agent, drain=0.0) as client:
            turn = await client.send("clerk", "One", id=engine.task_queue)
            handle = client.run(engine.task_queue).handle
            clients = await waiting(handle, 2, turn.task_id)
        gate.open()
        async with engine.served(agent) as client:
            for answer in await asyncio.gather(*clients):
                assert answer["response"]["content"] == "You said One."
            assert (await client.run(handle.id).send("Two")).task_id != turn.task_id
            await replay(client=client, id=handle.id)

    async def test_waits_that_run_out_while_no_worker_has_the_run_cached(
        self, engine: Engine, waits_are_short: None
    ) -> None:
        """Each task loads the run from its history, and a turn of a session begins and ends between."""
        gate = Gate()
        client = await engine.client()
        plugin = PerdurePlugin([gated(gate)], store_url=engine.store_url)
        queue = {"task_queue": engine.task_queue, "plugins": [plugin], "max_cached_workflows": 0}
        async with TemporalWorker(client.temporal, **queue):
            handle = client.run(engine.task_queue).handle
            turn = await client.send("clerk", "One", id=handle.id)
            for _ in range(3):
                assert {one["state"] for one in await asyncio.gather(wait(handle), wait(handle))} == {"running"}
            gate.open()
            await turn.result()
            second = await client.send("clerk", "Two", id=handle.id)
            while (answer := await wait(handle, second.task_id))["state"] == "running":
                pass
            assert answer["response"]["content"] == "You said Two."
            await replay(client=client, id=handle.id)

    async def test_a_wait_opens_a_run_with_update_with_start(self, engine: Engine) -> None:
        async with engine.served(Agent("clerk", ScriptedProvider(["Hello."]))) as client:
            start = WithStartWorkflowOperation(
                "AgentWorkflow",
                {"agent": "clerk", "message": "Hi"},
                id=engine.task_queue,
                task_queue=engine.task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            )
            answer = await client.temporal.execute_update_with_start_workflow(
                "wait_for_turn", start_workflow_operation=start, rpc_timeout=timedelta(seconds=60)
            )
            assert answer["response"]["content"] == "Hello."
