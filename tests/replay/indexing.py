"""Kinds of runs that keep search attributes, whose histories are stored."""

from __future__ import annotations

from perdure import Agent, Limits, Run
from perdure.testing import ScriptedProvider, call
from tests.replay.approvals import _agent, _waits, pay
from tests.replay.scenarios import TOOLS, _end, _state, scenario
from tests.support.engine import Engine
from tests.support.wait import eventually


@scenario
async def indexed_approvals(engine: Engine) -> Run:
    """Begin to wait, are decided on one by one, and are done."""
    async with engine.served(_agent(call("add", a=1, b=1), call("pay", a=1, b=1), call("pay", a=2, b=2))) as client:
        run = await client.start("recorded", "Go.")
        first, second = await _waits(run, 2)
        await run.approve(first, by="ana")
        await run.deny(second, by="ana")
        await _end(run)
    return run


@scenario
async def indexed_plain_start(engine: Engine) -> Run:
    """The agent's name was not given at the start."""
    async with engine.served(_agent(call("pay", a=1, b=1))) as client:
        run = client.run(f"plain-{engine.task_queue}")
        start = {"agent": "recorded", "message": "Go."}
        await client.temporal.start_workflow("AgentWorkflow", start, id=run.id, task_queue=engine.task_queue)
        await _waits(run, 1)
        await run.approve(by="ana")
        await _end(run)
    return run


@scenario
async def indexed_continue_as_new(engine: Engine) -> Run:
    """What was told before comes with the next execution."""
    replies = ScriptedProvider(
        [call("pay", a=1, b=1), [call("pay", a=2, b=2), *(call("add", a=n, b=n) for n in range(4))], "Done."]
    )
    async with engine.served(Agent("recorded", replies, tools=[*TOOLS, pay])) as client:
        run = await client.start("recorded", "Go.", max_history_events=25)
        await _waits(run, 1)
        await run.approve(by="ana")

        async def next_execution() -> bool:
            return (await run.handle.describe()).run_id != run.handle.first_execution_run_id

        await eventually(next_execution)
        await _waits(run, 1)
        await run.approve(by="ana")
        await _end(run)
    return run


@scenario
async def indexed_session(engine: Engine) -> Run:
    """Waits for messages: one event, whatever the turns."""
    async with engine.served(Agent("recorded", ScriptedProvider(["One.", "Two."]))) as client:
        run = client.run(f"session-{engine.task_queue}")
        for text in ("a", "b"):
            await (await client.send("recorded", text, id=run.id)).result()
        await eventually(lambda: _state(run, "idle"))
        await run.close()
        await _end(run)
    return run


@scenario
async def indexed_pause(engine: Engine) -> Run:
    """Paused at a limit, raised, and done."""
    replies = ScriptedProvider([call("add", a=1, b=1), call("add", a=2, b=2), "Done."])
    agent = Agent("recorded", replies, tools=TOOLS, limits=Limits(tool_calls=1), on_limit="pause")
    async with engine.served(agent) as client:
        run = await client.start("recorded", "Go.")
        await eventually(lambda: _state(run, "paused"))
        await run.resume(limits={"tool_calls": 9})
        await _end(run)
    return run


@scenario
async def indexed_subagent(engine: Engine) -> Run:
    """The child is started with its agent's name."""
    helper = Agent("helper", ScriptedProvider(["Helped."]), description="Helps.")
    lead = Agent("recorded", ScriptedProvider([call("call_helper", task="Help."), "Done."]), subagents=[helper])
    async with engine.served(lead, helper) as client:
        run = await client.start("recorded", "Go.")
        await _end(run)
    return run


@scenario
async def labelled_subagent(engine: Engine) -> Run:
    """The run has a tenant and a user, and so has its child; it continues as new, and its start indexes neither."""
    helper = Agent("helper", ScriptedProvider(["Helped."]), description="Helps.")
    lead = Agent(
        "recorded",
        ScriptedProvider([call("call_helper", task="Help."), "Done.", "One.", "Two."]),
        subagents=[helper],
    )
    start = {"agent": "recorded", "message": "Go.", "mode": "session", "max_history_events": 30}
    async with engine.served(lead, helper) as client:
        run = client.run(f"labelled-{engine.task_queue}", tenant="acme")
        labelled = {**start, "tenant": "acme", "user": "ann"}
        await client.temporal.start_workflow("AgentWorkflow", labelled, id=run.id, task_queue=engine.task_queue)
        await run.turn().result()
        for text in ("More.", "Still more."):
            await (await client.send("recorded", text, id=run.id, tenant="acme", user="ann")).result()
        await run.close()
        await _end(run)
    return run
