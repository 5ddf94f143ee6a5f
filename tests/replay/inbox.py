"""Kinds of runs that keep what waits in their memo, whose histories are stored."""

from __future__ import annotations

from perdure import Agent, Run, tool
from perdure.client.inbox import read_pending_memo
from perdure.testing import ScriptedProvider, call
from tests.replay.approvals import nagging, pay
from tests.replay.questions import ask, careful
from tests.replay.scenarios import TOOLS, _end, scenario
from tests.support.engine import Engine
from tests.support.wait import eventually


@tool(needs_approval=True)
async def file(text: str) -> str:
    """File a text."""
    return "filed"


async def _waits(run: Run, *wanted: str) -> dict[str, str]:
    """Until the memo has exactly calls of these tools; their ids."""

    async def there() -> dict[str, str]:
        found = {one.tool: one.call_id for one in await read_pending_memo(await run.handle.describe()) or ()}
        return found if sorted(found) == sorted(wanted) else {}

    return await eventually(there)


def _agent(*replies: object) -> Agent:
    return Agent("recorded", ScriptedProvider([*replies, "Done."]), tools=[*TOOLS, pay, file, nagging, ask, careful])


@scenario
async def noted_calls(engine: Engine) -> Run:
    """An approval with reminders, a question after another, and a call that is approved and then run by a client."""
    calls = [call("nagging", a=1, b=1), call("ask", first="Who?"), call("careful"), call("add", a=1, b=1)]
    async with engine.served(_agent(call("add", a=2, b=2), calls)) as client:
        run = await client.start("recorded", "Go.")
        waits = await _waits(run, "nagging", "ask", "careful")

        async def reminded() -> bool:
            return any(one.reminded for one in (await run.status()).approvals)

        await eventually(reminded)
        await run.approve(waits["careful"], by="ana")
        await run.answer(waits["careful"], "opened", by="ana")
        await run.answer(waits["ask"], "ana", by="ana")

        async def asks_again() -> str:
            return next((one.hash for one in (await run.status()).approvals if one.question == "Sure?"), "")

        await run.answer(waits["ask"], True, by="ana", hash=await eventually(asks_again))
        await _waits(run, "nagging")
        await run.deny(waits["nagging"], by="ana")
        await _end(run)
    return run


@scenario
async def noted_over_continue_as_new(engine: Engine) -> Run:
    """The next execution says again what waits."""
    first = [call("pay", a=2, b=2), *(call("add", a=n, b=n) for n in range(4))]
    async with engine.served(_agent(first)) as client:
        run = await client.start("recorded", "Go.", max_history_events=15)

        async def next_execution() -> bool:
            return (await run.handle.describe()).run_id != run.handle.first_execution_run_id

        await eventually(next_execution)
        await _waits(run, "pay")
        await run.approve(by="ana")
        await _end(run)
    return run


@scenario
async def noted_when_it_fits(engine: Engine) -> Run:
    """Two calls are too long for the memo, one of them is not."""
    long = [call("file", text=letter * 21_000) for letter in "ab"]
    async with engine.served(_agent(long)) as client:
        run = await client.start("recorded", "Go.")

        async def both() -> list[str]:
            found = [one.call_id for one in (await run.status()).approvals]
            return found if len(found) == len(long) else []

        first, second = await eventually(both)
        await run.deny(first, by="ana")
        await _waits(run, "file")
        await run.deny(second, by="ana")
        await _end(run)
    return run


@scenario
async def noted_until_cancelled(engine: Engine) -> Run:
    """Cancelled while a person is waited for."""
    async with engine.served(_agent(call("pay", a=1, b=1))) as client:
        run = await client.start("recorded", "Go.")
        await _waits(run, "pay")
        await run.cancel()
        await _end(run)
    return run
