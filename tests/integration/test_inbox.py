"""What waits is read from Temporal itself: no worker is asked, and there need be none."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.client import Client as TemporalClient
from temporalio.client import Interceptor, OutboundInterceptor, QueryWorkflowInput, StartWorkflowUpdateInput
from temporalio.converter import DataConverter
from temporalio.worker import Worker as TemporalWorker

from perdure import Agent, Approval, Client, PerdurePlugin, Run, ToolContext, Worker, callback_tool, tool
from perdure.client.inbox import PendingCall, read_pending_memo
from perdure.errors import ApprovalDecidedError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.types.interface import WAITING_MEMO, WAITING_MEMO_BYTES, WAITING_MEMO_CALLS
from tests.support.codec import Backwards
from tests.support.engine import Engine
from tests.support.wait import eventually

pytestmark = pytest.mark.server


@tool(needs_approval=Approval(expires="7d"))
async def refund(order: str, note: str | None = None) -> str:
    """Refund an order."""
    return f"refunded {order}"


nagging = tool(refund.fn, name="nagging", needs_approval=Approval(remind=1))


class Transfer(BaseModel):
    account: str


@tool
async def pay(ctx: ToolContext, who: str) -> str:
    """Pay a person."""
    first = await ctx.ask("Which account?", Transfer)
    return f"paid {who} of {first.account}: {await ctx.ask('Why?')}"


@tool
async def look() -> str:
    """Look."""
    return "seen"


page = callback_tool("page", "Read the page.", needs_approval=True)


def agent(engine: Engine, *replies: Any, **options: Any) -> Agent:
    """One whose name no other test of this server has."""
    tools = [refund, nagging, pay, page, look]
    return Agent(f"desk-{engine.task_queue}", ScriptedProvider(list(replies)), tools=tools, **options)


class Queries(Interceptor):
    """Counts what a client asks of workers."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _Counting(next, self.asked)


class _Counting(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor, asked: list[str]) -> None:
        super().__init__(next)
        self._asked = asked

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        raise AssertionError("nothing that is open is queried")

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> Any:
        if input.update == "read":
            self._asked.append(input.id)
        return await super().start_workflow_update(input)


async def counting(engine: Engine) -> tuple[Client, Queries]:
    """A client beside the worker's, and what it asks."""
    queries = Queries()
    plain = await TemporalClient.connect(engine.address, interceptors=[queries])
    return Client(plain, task_queue=engine.task_queue, actor="ana"), queries


async def listed(client: Client, desk: Agent, count: int) -> list[PendingCall]:
    """The inbox, when so many are in it."""

    async def there() -> list[PendingCall]:
        found = list(await client.approvals(agent=desk.name))
        return found if len(found) == count else []

    return await eventually(there, what=f"{count} in the inbox")


async def in_memo(run: Run, count: int) -> list[str]:
    """Names of the tools whose calls wait, when the memo has so many."""

    async def there() -> list[str]:
        found = await read_pending_memo(await run.handle.describe()) or ()
        return [one.tool for one in found] if len(found) == count else []

    return await eventually(there, what=f"{count} in the memo")


async def upserts(run: Run) -> int:
    """Events that the list in the memo has cost the present execution of a run."""
    seen = await run.handle.describe()
    history = await run.client.temporal.get_workflow_handle(run.id, run_id=seen.run_id).fetch_history()
    changed = [one.workflow_properties_modified_event_attributes for one in history.events]
    return sum(WAITING_MEMO in one.upserted_memo.fields for one in changed)


async def test_the_inbox_needs_no_worker(engine: Engine) -> None:
    calls = [call("refund", order="7", note=None), call("pay", who="bob"), call("page")]
    desk = agent(engine, calls, "Done.")
    looking, queries = await counting(engine)
    async with engine.served(desk) as client:
        run = await client.start(desk.name, "Go.")
        assert sorted(await in_memo(run, 3)) == ["page", "pay", "refund"]
        status = await run.status()
    # No worker serves it any more.
    found = await listed(looking, desk, 3)
    assert queries.asked == []
    by_tool = {one.tool: one for one in found}
    assert [by_tool[name].kind for name in ("refund", "pay", "page")] == ["approval", "question", "approval"]
    assert by_tool["refund"].arguments == {"order": "7", "note": None}
    assert by_tool["pay"].question == "Which account?"
    assert by_tool["pay"].form is not None
    for one in status.approvals:
        shown = by_tool[one.tool]
        assert (shown.run_id, shown.agent, shown.call_id) == (run.id, desk.name, one.call_id)
        assert (shown.hash, shown.form, shown.arguments) == (one.hash, one.form, one.arguments)
        times = [moment.isoformat() if moment else None for moment in (shown.since, shown.expires)]
        assert times == [one.since, one.expires]
    async with engine.served(desk):
        await by_tool["refund"].approve()
        await by_tool["pay"].answer({"account": "savings"})
        await by_tool["page"].approve()

        async def next_ones() -> dict[str, PendingCall]:
            # Each asks a second time: the tool another question, the other call for its result.
            now = {one.tool: one for one in await looking.approvals(agent=desk.name)}
            wanted = {"pay": "question", "page": "callback"}
            asks = now.get("pay") is not None and now["pay"].question == "Why?"
            return now if asks and {name: one.kind for name, one in now.items()} == wanted else {}

        again = await eventually(next_ones)
        await again["pay"].answer("Because.")
        await again["page"].answer("words")
        assert (await run.result()).content == "Done."
    assert queries.asked == []


async def test_what_it_costs_in_history(engine: Engine) -> None:
    calls = [call("nagging", order="a"), call("refund", order="b")]
    desk = agent(engine, call("look"), calls, call("look"), "Done.")
    async with engine.served(desk) as client:
        run = await client.start(desk.name, "Go.")
        await in_memo(run, 2)
        assert await upserts(run) == 1

        async def reminded() -> bool:
            return any(one.reminded > 1 for one in (await run.status()).approvals)

        await eventually(reminded)
        assert await upserts(run) == 1, "a reminder is none of its business"
        first, second = await listed(client, desk, 2)
        await first.approve()
        await in_memo(run, 1)
        await second.deny()
        await run.result()
        assert await upserts(run) == 3
        history = await run.handle.fetch_history()
        memo, told = (
            [
                getattr(one, f"{kind}_event_attributes").workflow_task_completed_event_id
                for one in history.events
                if one.HasField(f"{kind}_event_attributes")
            ]
            for kind in ("workflow_properties_modified", "upsert_workflow_search_attributes")
        )
        assert set(memo) <= set(told), "in one workflow task with the number"


async def test_a_run_that_never_waits_has_no_such_event(engine: Engine) -> None:
    desk = agent(engine, call("look"), "Done.", "Done.")
    async with engine.served(desk) as client:
        run = await client.start(desk.name, "Go.")
        await run.result()
        assert await upserts(run) == 0
        turn = await client.send(desk.name, "Go.", id=f"session-{engine.task_queue}")
        await turn.result()
        session = client.run(f"session-{engine.task_queue}")
        await session.close()
        await session.result()
        assert await upserts(session) == 0, "nor has one that waits for messages alone"


async def test_who_looked_earlier_hears_who_was_quicker(engine: Engine) -> None:
    desk = agent(engine, call("refund", order="7"), "Done.")
    looking, _ = await counting(engine)
    async with engine.served(desk) as client:
        run = await client.start(desk.name, "Go.")
        (mine,) = await listed(client, desk, 1)
        (theirs,) = await listed(looking, desk, 1)
        await mine.approve(by="bea")
        with pytest.raises(ApprovalDecidedError, match="already approved by bea"):
            await theirs.approve(by="ana")
        assert (await run.result()).content == "Done."


async def test_what_does_not_fit_is_asked_for(engine: Engine) -> None:
    """Until enough of it is decided."""
    large = [call("refund", order="7", note="x" * 30_000) for _ in range(2)]
    many = [call("refund", order=str(n)) for n in range(WAITING_MEMO_CALLS + 1)]
    assert WAITING_MEMO_BYTES < 2 * 30_000
    desk = agent(engine, large, many)
    looking, queries = await counting(engine)
    async with engine.served(desk) as client:
        for calls in (large, many):
            run = await client.start(desk.name, "Go.")
            found = await listed(looking, desk, len(calls))
            assert {one.run_id for one in found} == {run.id}
            assert run.id in queries.asked
            assert WAITING_MEMO not in await (await run.handle.describe()).memo()
            await found[0].approve()
            await in_memo(run, len(calls) - 1)
            queries.asked.clear()
            await listed(looking, desk, len(calls) - 1)
            assert queries.asked == []
            await run.cancel()


async def test_the_longest_arguments_that_history_takes_fit(engine: Engine) -> None:
    desk = agent(engine, call("refund", order="7", note="x" * (32 * 1024 - 100)), "Done.")
    async with engine.served(desk) as client:
        run = await client.start(desk.name, "Go.")
        await in_memo(run, 1)
        (found,) = await listed(client, desk, 1)
        assert found.arguments is not None
        assert len(found.arguments["note"]) == 32 * 1024 - 100
        await run.cancel()


async def test_it_is_told_again_where_a_run_continues_as_new(engine: Engine) -> None:
    calls = [call("refund", order="a"), *(call("look") for _ in range(4))]
    desk = agent(engine, calls, "Done.")
    looking, queries = await counting(engine)
    async with engine.served(desk) as client:
        run = await client.start(desk.name, "Go.", max_history_events=15)

        async def continued() -> bool:
            seen = await run.handle.describe()
            return seen.run_id != run.handle.first_execution_run_id and await read_pending_memo(seen) is not None

        await eventually(continued)
        assert await upserts(run) == 1
        (found,) = await listed(looking, desk, 1)
        assert queries.asked == []
        await found.approve()
        assert (await run.result()).content == "Done."


async def test_a_codec_has_the_memo_too(engine: Engine) -> None:
    desk = agent(engine, [call("refund", order="hush-7"), call("refund", order="hush-8")], "Done.")
    converter = dataclasses.replace(DataConverter.default, payload_codec=Backwards())
    plain = await TemporalClient.connect(engine.address, data_converter=converter)
    client = Client(plain, store_url=engine.store_url, task_queue=engine.task_queue, actor="tests")
    blind, queries = await counting(engine)
    async with Worker(client, [desk], drain=1.0):
        run = await client.start(desk.name, "Go.")
        await in_memo(run, 2)
        seen = await run.handle.describe()
        assert b"hush" not in seen.raw_description.SerializeToString()
        first, second = await listed(client, desk, 2)
        assert {one.arguments["order"] for one in (first, second) if one.arguments} == {"hush-7", "hush-8"}
        assert await read_pending_memo(await blind.run(run.id).handle.describe()) is None, (
            "who cannot read it does not guess"
        )
        await first.approve()
        await second.approve()
        # What is taken away is encrypted, too: the server keeps a value that says nothing.
        await run.result()
        assert not (await (await run.handle.describe()).memo()).get(WAITING_MEMO)
    assert queries.asked == []
    await client.close()


async def test_two_look_at_once_while_runs_come_and_go_in_the_cache(engine: Engine) -> None:
    """With queries 3 to 5 of 100 such pairs left a run stuck in its worker (docs/decisions/023)."""

    def reply(request: ModelRequest) -> Any:
        return "Done." if request.messages[-1].role == "tool" else call("refund", order="7")

    desk = Agent(f"desk-{engine.task_queue}", ScriptedProvider(reply), tools=[refund])
    one, first = await counting(engine)
    other, second = await counting(engine)
    client = await engine.client()
    plugin = PerdurePlugin([desk], store_url=engine.store_url)
    queue = {"task_queue": engine.task_queue, "plugins": [plugin], "max_cached_workflows": 2}
    async with TemporalWorker(client.temporal, **queue):
        runs = [await client.start(desk.name, "Go.") for _ in range(6)]
        for run in runs:
            await in_memo(run, 1)
        await listed(one, desk, len(runs))
        first.asked.clear()
        for _ in range(20):
            found = await asyncio.gather(one.approvals(agent=desk.name), other.approvals(agent=desk.name))
            assert [len(each) for each in found] == [len(runs)] * 2
        assert first.asked == second.asked == []
        for each in await one.approvals(agent=desk.name):
            await each.approve()
        for run in runs:
            assert (await run.result()).content == "Done."
