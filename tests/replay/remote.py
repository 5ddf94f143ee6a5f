"""Kinds of runs with remote tools, and forks, whose histories are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temporalio import activity
from temporalio.worker import Worker

from perdure import Agent, Run, Veto, ask, callback_tool, hook, remote_tool, tool
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import ToolResultPart
from tests.replay.scenarios import TOOLS, _end, scenario
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually


async def _run(engine: Engine, replies: Sequence[Any], stop: str | None = None, **options: Any) -> Run:
    """``far`` answers, ``bad`` raises, ``late`` answers the second time, ``stuck`` never. ``costly`` is approved."""
    queue = f"{engine.task_queue}-far"
    late, slow = Gate(), Gate()

    @activity.defn(name="tool.far")
    async def far(arguments: dict[str, Any]) -> Any:
        return arguments

    @activity.defn(name="tool.bad")
    async def bad(arguments: dict[str, Any]) -> Any:
        raise LookupError("there is none")

    @activity.defn(name="tool.late")
    async def late_(arguments: dict[str, Any]) -> Any:
        if late.entered:
            return "at last"
        await late()
        return None

    @activity.defn(name="tool.stuck")
    async def stuck(arguments: dict[str, Any]) -> Any:
        await slow()

    @activity.defn(name="tool.costly")
    async def costly(arguments: dict[str, Any]) -> Any:
        return arguments

    tools = [*TOOLS, *(remote_tool(name, {}, queue) for name in ("far", "bad", "stuck", "costly"))]
    tools.append(remote_tool("late", {}, queue, timeout=0.5, idempotent=True))
    agent = Agent("recorded", ScriptedProvider(replies), tools=tools, **options)
    worker = Worker(await engine.temporal(), task_queue=queue, activities=[far, bad, late_, stuck, costly])
    async with engine.served(agent) as client, worker:
        run = await client.start("recorded", "Go.")
        if "approvals" in options:

            async def waits() -> bool:
                return bool((await run.status()).approvals)

            await eventually(waits, what="the call that is to be approved")
            await run.approve(by="ana")
        if stop is not None:
            await eventually(lambda: slow.entered, what="the remote tool")
            await (run.cancel() if stop == "cancel" else run.interrupt(stop))
        await _end(run)
        late.open()
        slow.open()
    return run


@scenario
async def remote_tools(engine: Engine) -> Run:
    return await _run(engine, [[call("far", n=1), call("add", a=1, b=1), call("bad")], call("late"), "Done."])


@scenario
async def remote_tool_interrupted(engine: Engine) -> Run:
    return await _run(engine, [[call("stuck"), call("far", n=1)], "Done."], "Enough.")


@scenario
async def remote_tool_cancelled(engine: Engine) -> Run:
    return await _run(engine, [[call("stuck"), call("far", n=1)]], "cancel")


@scenario
async def fork(engine: Engine) -> Run:
    agent = Agent("recorded", ScriptedProvider([call("add", a=1, b=1), "Two.", "Three."]), tools=TOOLS)
    async with engine.served(agent) as client:
        run = await client.start("recorded", "Go.")
        await _end(run)
        (asked,) = [one.id for message in await run.transcript() for one in message.tool_calls]
        branch = await run.fork(results={asked: "3"})
        await _end(branch)
    return branch


@hook("before_tool_call")
def _guard(arguments: dict[str, Any]) -> Any:
    if "veto" in arguments:
        return Veto("no")
    return {**arguments, "seen": True} if "n" in arguments else arguments  # a call that was approved stays as it is


@hook("after_tool_call")
def _redact(result: ToolResultPart) -> str:
    return result.content.upper()


@scenario
async def remote_hooks(engine: Engine) -> Run:
    """One changed, one vetoed, one that fails, one that is answered the second time; one approved first."""
    calls = [call("far", n=1), call("far", veto=True), call("bad"), call("late"), call("costly")]
    hooked = {"hooks": [_guard, _redact], "approvals": [ask("costly")]}
    return await _run(engine, [calls, "Done."], **hooked)


@scenario
async def remote_hooks_interrupted(engine: Engine) -> Run:
    calls = [call("stuck"), call("far", n=1)]
    return await _run(engine, [calls, "Done."], "Enough.", hooks=[_guard, _redact])


@scenario
async def callback_hooks(engine: Engine) -> Run:
    """A client answers one call while another tool runs, and one with an error; a third is approved first."""
    gate = Gate()

    @tool
    async def hold() -> str:
        """Hold."""
        await gate()
        return "held"

    show, door = callback_tool("show", "Show."), callback_tool("door", "Open.", needs_approval=True)
    calls = [call("show", n=1), call("show", n=2), call("door"), call("hold")]
    replies = ScriptedProvider([calls, "Done."])
    agent = Agent("recorded", replies, tools=[*TOOLS, show, door, hold], hooks=[_guard, _redact])

    async with engine.served(agent) as client:
        run = await client.start("recorded", "Go.")

        async def waits(kind: str, count: int) -> Any:
            found = [one for one in (await run.status()).approvals if one.kind == kind]
            return found if len(found) == count else None

        first, second = await eventually(lambda: waits("callback", 2))
        await run.answer(first.call_id, "one", by="ana")
        await run.answer(second.call_id, error="no", by="ana")
        (third,) = await eventually(lambda: waits("approval", 1))
        await run.approve(third.call_id, by="ana")
        (third,) = await eventually(lambda: waits("callback", 1))
        gate.open()
        await run.answer(third.call_id, {"open": True}, by="bea")
        await _end(run)
    return run
