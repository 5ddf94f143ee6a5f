"""Interrupts on a real server: what is in flight stops, what was finished stays, the transcript stays valid."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client as Temporal

from perdure import Agent, Client, Run, ToolContext, Worker, tool
from perdure.errors import RunCancelledError
from perdure.loop.transcript import list_open_calls
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from tests.support.checks import results, users
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually
from tests.workers import stuck


class Desk:
    """Tools that finish at once, hang until they are cancelled, or wait for the gate; and what became of them."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.stopped: list[float] = []
        self.after = 0
        desk = self

        @tool
        async def quick() -> str:
            """Finish at once."""
            return "quick"

        @tool
        async def hang() -> str:
            """Wait until cancelled."""
            try:
                await desk.gate()
            finally:
                desk.stopped.append(time.monotonic())
            return "hung"

        @tool
        def plain(ctx: ToolContext) -> str:
            """Block a thread until told."""
            desk.gate.entered += 1
            while not ctx.cancelled:
                time.sleep(0.01)
            desk.stopped.append(time.monotonic())
            return "told"

        @tool(inline=True)
        async def after() -> str:
            """Run in the model's activity."""
            desk.after += 1
            return "after"

        self.tools = [quick, hang, plain, after]


async def begun(client: Client, desk: Desk, count: int = 1, **options: Any) -> Run:
    run = await client.start("desk", "Go.", mode="session", **options)
    await eventually(lambda: desk.gate.entered == count)
    return run


@pytest.mark.fault(
    "Clients",
    "A client interrupts the turn.",
    "Calls that were finished keep their results; the others say that they were stopped. The turn "
    "continues with the message, or ends.",
)
async def test_an_interrupt_with_a_message_goes_on_with_it(engine: Engine) -> None:
    desk = Desk()
    replies = [[call("quick"), call("hang"), call("plain")], lambda r: f"You said {users(r.messages)[-1]}"]
    async with engine.served(Agent("desk", ScriptedProvider(replies), tools=desk.tools)) as client:
        run = await begun(client, desk, 2)
        turn = run.turn()
        await eventually(lambda: _waits_for(run, 2), what="the quick one is done")
        asked = time.monotonic()
        await run.interrupt("Stop that.", by="ana")
        response = await turn.result()
    assert response.content == "You said Stop that."
    assert response.finish_reason == "stop"
    (results,) = [message.tool_results for message in response.messages if message.role == "tool"]
    assert [result.is_error for result in results] == [False, True, True]
    assert results[0].content == "quick"
    assert all("ancelled" in result.content for result in results[1:])
    assert len(desk.stopped) == 2
    print("from the interrupt to the stop:", [round(moment - asked, 2) for moment in desk.stopped])
    assert response.messages[-2].by == "ana"
    assert list_open_calls(response.messages) == []


async def _waits_for(run: Run, calls: int) -> bool:
    return len((await run.status()).calls) == calls


@pytest.mark.fault("Clients", "A client interrupts the turn.")
async def test_an_interrupt_without_a_message_ends_the_turn(engine: Engine) -> None:
    desk = Desk()
    replies = [[call("quick"), call("hang")], lambda r: f"You said {users(r.messages)[-1]}"]
    async with engine.served(Agent("desk", ScriptedProvider(replies), tools=desk.tools)) as client:
        run = await begun(client, desk)
        turn = run.turn()
        await run.interrupt()
        stopped = await turn.result()
        assert (stopped.finish_reason, stopped.content) == ("interrupted", "")

        async def closed() -> bool:
            return list_open_calls(await run.transcript()) == []

        await eventually(closed, what="a transcript that every provider takes, without another message")
        assert (await run.status()).state == "idle"
        again = await (await run.send("And now?")).result()
        assert again.content == "You said And now?"
        assert list_open_calls(again.messages) == []


async def test_an_interrupt_in_a_model_call(engine: Engine) -> None:
    gate = Gate()
    cancelled = asyncio.Event()

    async def reply(request: ModelRequest) -> str:
        if users(request.messages)[-1] == "Go.":
            try:
                await gate()
            except asyncio.CancelledError:
                cancelled.set()
                raise
        return f"You said {users(request.messages)[-1]}"

    async with engine.served(Agent("desk", ScriptedProvider(reply))) as client:
        run = await client.start("desk", "Go.")
        await eventually(lambda: gate.entered)
        await run.interrupt("Stop that.")
        response = await run.result()
    assert cancelled.is_set()
    assert response.content == "You said Stop that."
    assert users(response.messages) == ["Go.", "Stop that."]


async def test_a_run_that_is_stopped_completes_as_interrupted(engine: Engine) -> None:
    desk = Desk()
    async with engine.served(Agent("desk", ScriptedProvider([call("hang")]), tools=desk.tools)) as client:
        run = await client.start("desk", "Go.")
        await eventually(lambda: desk.gate.entered)
        await run.inject("One thing more.")
        await run.interrupt()
        response = await run.result()
    assert response.finish_reason == "interrupted"
    assert list_open_calls(response.messages) == []
    assert users(response.messages) == ["Go.", "One thing more."], "what was said is kept"


async def test_an_interrupt_twice_and_between_two_turns(engine: Engine) -> None:
    desk = Desk()
    replies = [call("hang"), "One.", "Two."]
    async with engine.served(Agent("desk", ScriptedProvider(replies), tools=desk.tools)) as client:
        run = await begun(client, desk)
        turn = run.turn()
        for _ in range(2):
            await run.interrupt("Stop that.", id="i1")
        assert (await turn.result()).content == "One."
        await run.interrupt()  # nothing is under way
        await run.interrupt("Next.")
        second = await run.turn().result()
    assert second.content == "Two."
    assert users(second.messages) == ["Go.", "Stop that.", "Next."]


@pytest.mark.server
async def test_an_interrupt_before_the_first_worker(engine: Engine) -> None:
    client = await engine.client()
    run = await client.start("desk", "Go.", mode="session")
    await run.interrupt("No, this.")
    async with engine.served(Agent("desk", ScriptedProvider(lambda r: "|".join(users(r.messages))))):
        assert (await run.turn().result()).content == "Go.|No, this."


@pytest.mark.server
async def test_a_run_that_is_cancelled_while_an_interrupt_settles(engine: Engine) -> None:
    """What is in flight is waited for all the same, and the transcript is closed."""
    held, cleaned = Gate(), Gate()

    @tool
    async def slow() -> str:
        """Take time to stop."""
        try:
            await held()
        finally:
            await cleaned()
        return "held"

    async with engine.served(Agent("desk", ScriptedProvider([call("slow")]), tools=[slow])) as client:
        run = await client.start("desk", "Go.")
        await eventually(lambda: held.entered)
        await run.interrupt("Stop that.")
        await eventually(lambda: cleaned.entered)
        await run.cancel()
        await eventually(lambda: _cancelling(run), what="a workflow that knows of it")
        cleaned.open()
        with pytest.raises(RunCancelledError):
            await run.result()
        transcript = await run.transcript()
        assert list_open_calls(transcript) == []
        assert users(transcript) == ["Go.", "Stop that."]
        (row,) = await (await client.store()).list_runs()
        assert row.status == "cancelled"


async def _cancelling(run: Run) -> bool:
    """Whether the workflow has been told of its cancellation."""
    kinds = [event.event_type for event in (await run.handle.fetch_history()).events]
    asked = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED
    return asked in kinds and EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED in kinds[kinds.index(asked) :]


@pytest.mark.server
async def test_an_interrupt_of_a_model_call_whose_worker_is_lost(engine: Engine) -> None:
    """It ends with its heartbeats and is not tried again; nothing is wrong with the run."""
    worker = await engine.process("stuck")
    client = await engine.client()
    run = await client.start("stuck", "Go.", mode="session")
    await eventually(lambda: engine.ledger.counts("asked")["Go."])
    await worker.kill()
    await run.interrupt("No, this.")
    async with engine.served(*stuck.agents()):
        response = await run.turn().result()
    assert response.content == "You said No, this."


@pytest.mark.server
async def test_a_result_that_arrives_in_the_same_task_as_an_interrupt_is_kept(engine: Engine) -> None:
    """The tool's worker is there, the workflow's is not: when it comes back, both are in its first task."""
    gate = Gate()
    elsewhere = f"{engine.task_queue}-tools"

    @tool(task_queue=elsewhere)
    async def work() -> str:
        """Work."""
        await gate()
        return "worked"

    provider = ScriptedProvider(lambda request: "Done." if results(request.messages) else call("work"))
    agent = Agent("desk", provider, tools=[work])
    beside = Client(await Temporal.connect(engine.address), store_url=engine.store_url, task_queue=elsewhere)
    async with Worker(beside, [agent], drain=1.0):
        async with engine.served(agent) as client:
            runs = [await client.start("desk", "Go.", mode="session") for _ in range(3)]
            await eventually(lambda: gate.entered == len(runs))
        gate.open()

        async def worked() -> bool:
            pending = [(await run.describe()).raw_description.pending_activities for run in runs]
            return not any(pending)

        await eventually(worked, what="the tools' results in history")
        goes_on, stops, is_cancelled = runs
        await goes_on.interrupt("Stop.")
        await stops.interrupt()
        await is_cancelled.cancel()
        async with engine.served(agent):
            for run in runs:

                async def recorded(run: Run = run) -> list[str]:
                    return results(await run.transcript())

                assert await eventually(recorded) == ["worked"]
    await beside.close()
