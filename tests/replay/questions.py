"""Kinds of runs with calls that wait for an answer, whose histories are stored."""

from __future__ import annotations

from typing import Any

from perdure import Agent, ClientTool, Run, ToolContext, callback_tool, tool
from perdure.errors import PerdureError
from perdure.testing import ScriptedProvider, call
from perdure.types.approvals import WaitingCall
from tests.replay.scenarios import TOOLS, _end, scenario
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually


@tool
async def ask(ctx: ToolContext, first: str) -> str:
    """Ask twice."""
    return f"{await ctx.ask(first, str)} {await ctx.ask('Sure?', bool)}"


@tool
async def hasty(ctx: ToolContext) -> str:
    """Ask, and wait a moment."""
    return str(await ctx.ask("Now?", expires=0.3))


page = callback_tool("page", "Open a page.", output={"type": "string"})
quick = callback_tool("quick", "Be quick.", expires=0.3)
careful = callback_tool("careful", "Open the door.", needs_approval=True)


def _agent(*calls: Any, more: Any = ()) -> Agent:
    replies = ScriptedProvider([list(calls), "Done."])
    return Agent("recorded", replies, tools=[*TOOLS, ask, hasty, page, quick, careful, *more])


async def _waits(run: Run, *wanted: str) -> dict[str, WaitingCall]:
    """Until exactly these tools have a call that waits; the calls."""

    async def there() -> dict[str, WaitingCall]:
        found = {one.tool: one for one in (await run.status()).approvals}
        return found if sorted(found) == sorted(wanted) else {}

    return await eventually(there)


@scenario
async def questions_answered(engine: Engine) -> Run:
    """A tool asks twice, a client runs a call, another one is approved first; two people answer one."""
    async with engine.served(_agent(call("ask", first="Who?"), call("page"), call("careful"))) as client:
        run = await client.start("recorded", "Go.")
        waits = await _waits(run, "ask", "page", "careful")
        await run.answer(waits["page"].call_id, "opened", by="ana")
        for who in ("ana", "bea"):
            try:
                await run.answer(waits["ask"].call_id, who, by=who)
            except PerdureError as error:
                print(f"  refused with {type(error).__name__}")

        async def again() -> str | None:
            return next((one.hash for one in (await run.status()).approvals if one.question == "Sure?"), None)

        await run.answer(waits["ask"].call_id, True, by="ana", hash=await eventually(again))
        await run.approve(waits["careful"].call_id, by="ana")
        await run.answer(waits["careful"].call_id, error="it is locked", by="bea")
        await _end(run)
    return run


@scenario
async def questions_expire(engine: Engine) -> Run:
    """A tool's question and a client's call, by the end of their time."""
    async with engine.served(_agent(call("hasty"), call("quick"))) as client:
        run = await client.start("recorded", "Go.")
        await _end(run)
    return run


@scenario
async def questions_continue_as_new(engine: Engine) -> Run:
    """The history is too long before the wait; answers come to the next execution."""
    adding = [call("add", a=n, b=n) for n in range(4)]
    async with engine.served(_agent(call("ask", first="Who?"), call("page"), *adding)) as client:
        run = await client.start("recorded", "Go.", max_history_events=15)
        waits = await _waits(run, "ask", "page")
        await run.answer(waits["page"].call_id, "opened", by="ana")
        await run.answer(waits["ask"].call_id, "ana", by="ana")

        async def again() -> bool:
            return any(one.question == "Sure?" for one in (await run.status()).approvals)

        await eventually(again)
        await run.answer(value=True)
        await _end(run)
    return run


@scenario
async def questions_beside_others(engine: Engine) -> Run:
    """A tool goes on with its answers while another call runs."""
    gate = Gate()

    @tool(name="gated")
    async def gated() -> str:
        """Wait."""
        await gate()
        return "at last"

    async with engine.served(_agent(call("gated"), call("ask", first="Who?"), more=[gated])) as client:
        run = await client.start("recorded", "Go.")
        for value in ("ana", True):

            async def there(form: str = "string" if value == "ana" else "boolean") -> bool:
                return any((one.form or {}).get("type") == form for one in (await run.status()).approvals)

            await eventually(there)
            await run.answer(value=value)
        gate.open()
        await _end(run)
    return run


@scenario
async def questions_interrupted(engine: Engine) -> Run:
    """Closed by an interrupt while they wait, and an answer comes too late."""
    async with engine.served(_agent(call("ask", first="Who?"), call("page"))) as client:
        run = await client.start("recorded", "Go.")
        waits = await _waits(run, "ask", "page")
        await run.interrupt("Never mind.")
        try:
            await run.answer(waits["page"].call_id, "opened")
        except PerdureError as error:
            print(f"  refused with {type(error).__name__}")
        await _end(run)
    return run


@scenario
async def client_tools_continue_as_new(engine: Engine) -> Run:
    """Tools that the client declares, by reference: one is called after the run has continued as new."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    replies: list[Any] = [[call("add", a=n, b=n) for n in range(4)], call("open", path="/a"), "Done."]
    agent = Agent("recorded", ScriptedProvider(replies), tools=TOOLS, client_tools=True)
    async with engine.served(agent) as client:
        tools = [ClientTool(name="open", parameters=schema)]
        run = await client.start(agent, "Go.", client_tools=tools, max_history_events=15)
        waits = await _waits(run, "open")
        await run.answer(waits["open"].call_id, "opened", by="ana")
        await _end(run)
    return run
