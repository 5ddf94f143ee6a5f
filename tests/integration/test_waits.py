"""The store's inbox in process: what it lists is what the runs wait for, whatever comes in which order."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any, Literal

import pytest

from perdure import Agent, Run, ToolContext, ask, callback_tool, hook, tool
from perdure.client.client import Client
from perdure.client.waits import WaitRepairs, reconcile_waits
from perdure.errors import PerdureError
from perdure.ports.waits import WaitRow
from perdure.testing import call, scripted
from perdure.testing.provider import ScriptError
from perdure.testing.scripted import _InProcessClient
from perdure.testing.store import MemoryStore
from tests.support.wait import eventually


@tool(needs_approval=True)
def refund(amount: int) -> str:
    """Refund."""
    return f"refunded {amount}"


@tool
def pay(ctx: ToolContext) -> str:
    """Pay."""
    amount = ctx.blocking.ask("How much?", int)
    return f"paid {amount}" if ctx.blocking.ask("Sure?", bool) else "not paid"


@tool(needs_approval=True)
def pay_twice(ctx: ToolContext) -> str:
    """Pay after an approval and an answer."""
    return f"paid {ctx.blocking.ask('How often?', int)}"


@tool(inline=True)
def check(ctx: ToolContext) -> str:
    """Ask inside of the model's activity."""
    return f"checked {ctx.blocking.ask('Right?', bool)}"


@hook("before_tool_call")
def sees_it_first(name: str) -> None:
    """A worker sees the callback before the client."""


read = callback_tool("read", "Read the page.")
sign = callback_tool("sign", "Sign the page.", hooks=[sees_it_first])
show = callback_tool("show", "Show the page.", needs_approval=True)
TOOLS = [refund, pay, pay_twice, check, read, sign, show]
MODEL = "openai:gpt-5"
CALLS: list[Any] = [
    call("refund", amount=3),
    call("refund", amount=4),
    call("pay"),
    call("pay_twice"),
    call("check"),
    call("read"),
    call("sign"),
    call("show"),
    call("call_helper", task="Do it."),
]


async def read_waits(client: Client) -> list[tuple[str, str, str, str]]:
    rows = await (await client.store()).list_waits(limit=1000)
    return sorted((row.context_id, row.call_id, row.kind, row.hash) for row in rows)


async def read_pending(client: Client, run: Run) -> list[tuple[str, str, str, str]]:
    """What the runs themselves say, from the run down."""
    try:
        status = await run.status()
    except PerdureError:  # a subagent that has not begun
        return []
    pending = [(run.id, one.call_id, one.kind, one.hash) for one in status.approvals]
    for child in await run.children():
        pending += await read_pending(client, child)
    return sorted(pending)


async def act(client: Client, wait: WaitRow, chance: random.Random) -> None:
    """Decide or answer one of what waits."""
    run = client.run(wait.context_id)
    if wait.kind == "approval":
        decide = chance.choice([run.approve, run.approve, run.deny])
        await decide(wait.call_id, hash=wait.hash, by="ana")
    elif wait.kind == "callback":
        await run.answer(wait.call_id, "text", hash=wait.hash, by="browser")
    else:
        form = json.loads(wait.body or b"")["form"]
        await run.answer(wait.call_id, form["type"] == "boolean" or 1, hash=wait.hash, by="ana")


async def is_listed(client: Client, run: Run) -> bool:
    """Whether the store lists what the runs say, in two looks at these that agree: nothing is on its way."""
    before = await read_pending(client, run)
    return await read_waits(client) == before == await read_pending(client, run)


@pytest.mark.parametrize("seed", range(6))
async def test_the_inbox_lists_what_waits_whatever_comes(seed: int) -> None:
    chance = random.Random(seed)
    replies = [chance.sample(CALLS, 4) for _ in range(3)]
    helper = Agent("helper", MODEL, tools=[refund, pay])
    clerk = Agent("clerk", MODEL, tools=TOOLS, subagents=[helper], approvals=[ask("call_*"), ask("call_helper")])
    helped: list[Any] = [part for _ in range(3) for part in ([call("refund", amount=1), call("pay")], "Helped.")]
    acts, has_ended = 0, False
    # Not every reply is asked for: whether the helper is, people decide.
    with suppress(ScriptError):
        async with scripted(clerk, [*replies, "Done."], others={helper: helped}) as kit:
            client = kit.client
            run = await client.start("clerk", "Go.", id="inbox")
            while (status := await run.status()).state not in ("completed", "failed", "cancelled"):
                if not status.approvals and not (await read_waits(client)):
                    await eventually(lambda: _has_moved(client, run), what="the run goes on")
                    continue
                await eventually(lambda: is_listed(client, run), what=f"the inbox after {acts} acts")
                waits = await (await client.store()).list_waits()
                if waits:
                    await act(client, chance.choice(waits), chance)
                    acts += 1
            assert await read_waits(client) == []
            assert acts >= 4
            await run.result()
            has_ended = True
    assert has_ended


async def _has_moved(client: Client, run: Run) -> bool:
    return bool((await run.status()).state != "running" or await read_waits(client))


# --- how waits end without a decision ---


async def start_waiting(client: Client, mode: Literal["run", "session"] = "run") -> Run:
    """Start a run that waits for two approvals and an answer."""
    run = await client.start("clerk", "Go.", id="inbox", mode=mode)

    async def has_three() -> bool:
        return len(await read_waits(client)) == 3 and await is_listed(client, run)

    await eventually(has_three)
    return run


THREE = [call("refund", amount=3), call("refund", amount=4), call("pay")]
clerk = Agent("clerk", MODEL, tools=TOOLS)


async def has_none(client: Client) -> bool:
    return not await read_waits(client)


async def test_an_interrupt_ends_all_waits() -> None:
    async with scripted(clerk, [THREE]) as kit:
        run = await start_waiting(kit.client, "session")
        await run.interrupt()
        await eventually(lambda: has_none(kit.client))


async def test_an_interrupt_with_a_message_leaves_the_waits_of_the_next_reply() -> None:
    async with scripted(clerk, [THREE, call("refund", amount=5)]) as kit:
        run = await start_waiting(kit.client)
        await run.interrupt("Only one.")

        async def has_one() -> bool:
            return len(await read_waits(kit.client)) == 1 and await is_listed(kit.client, run)

        await eventually(has_one)


async def test_a_cancelled_run_waits_for_nothing() -> None:
    async with scripted(clerk, [THREE]) as kit:
        run = await start_waiting(kit.client)
        await run.cancel()
        await eventually(lambda: has_none(kit.client))


async def test_a_standing_approval_ends_the_other_waits_of_its_tool() -> None:
    async with scripted(clerk, [THREE]) as kit:
        run = await start_waiting(kit.client)
        first = next(one for one in (await run.status()).approvals if one.tool == "refund")
        await run.approve(first.call_id, hash=first.hash, always=True, by="ana")

        async def has_question() -> bool:
            return [wait[2] for wait in await read_waits(kit.client)] == ["question"]

        await eventually(has_question)


async def test_a_pause_keeps_the_waits() -> None:
    async with scripted(clerk, [THREE]) as kit:
        run = await start_waiting(kit.client)
        before = await read_waits(kit.client)
        await run.pause()
        await eventually(lambda: _is_paused(run))
        assert await read_waits(kit.client) == before


async def _is_paused(run: Run) -> bool:
    return (await run.status()).state == "paused"


async def test_a_decision_removes_its_row_although_its_event_waits_for_the_other_calls() -> None:
    async with scripted(clerk, [THREE]) as kit:
        run = await start_waiting(kit.client)
        first, second = (one for one in (await run.status()).approvals if one.tool == "refund")
        await run.deny(first.call_id, by="ana")
        await run.approve(second.call_id, hash=second.hash, arguments={"amount": 1}, by="ana")
        left = [one for one in await read_waits(kit.client) if one[2] == "approval"]
        assert left == []
        events = [event.type async for event in run.events(wait=False)]
        assert events.count("approval.decided") <= 1, "that of the denied call comes with the results"


async def test_a_terminated_run_is_taken_off_the_list() -> None:
    """No worker can record its end: who reads its events does, and so does who looks after the list."""
    store = MemoryStore()
    async with scripted(clerk, [THREE], store=store) as kit:
        run = await start_waiting(kit.client)
        await run.terminate("by hand")
        assert len(await read_waits(kit.client)) == 3
        assert await reconcile_waits(kit.client) == WaitRepairs(removed=3, added=0)
        assert await read_waits(kit.client) == []
        assert [event.state async for event in run.events(wait=False) if event.type == "run"][-1] == "terminated"
        assert await reconcile_waits(kit.client) == WaitRepairs(removed=0, added=0)


async def test_waits_that_a_store_does_not_have_are_added() -> None:
    """After a reset by Temporal's tools, or a restore of the store, a call waits whose row is gone."""
    async with scripted(clerk, [THREE]) as kit:
        run = await start_waiting(kit.client)
        before = await read_waits(kit.client)
        store = await kit.client.store()
        for context_id, call_id, *_ in before[:2]:
            await store.remove_wait(context_id, call_id)
        assert await reconcile_waits(kit.client) == WaitRepairs(removed=0, added=2)
        assert await read_waits(kit.client) == before
        added = [row for row in await store.list_waits() if row.body is None]
        assert [(row.agent, row.root) for row in added] == [("clerk", "inbox")] * 2
        assert await is_listed(kit.client, run)


async def test_a_run_that_temporal_has_deleted_waits_for_nothing() -> None:
    async with scripted(clerk, []) as kit:
        store = await kit.client.store()
        await store.put_wait(WaitRow("gone", "a", "gone", "approval", "clerk", "refund", "h", "2026-01-01T00:00:00"))
        assert await reconcile_waits(kit.client) == WaitRepairs(removed=1, added=0)
        assert await read_waits(kit.client) == []


async def test_runs_that_are_kept_in_another_store_are_not_added() -> None:
    """Two stores may share a namespace of Temporal."""
    async with scripted(clerk, [THREE]) as kit:
        await start_waiting(kit.client)
        store = MemoryStore()
        await store.open()
        assert await reconcile_waits(_InProcessClient(kit.client.temporal, store)) == WaitRepairs(removed=0, added=0)
        assert await store.list_waits() == []
