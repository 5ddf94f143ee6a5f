"""The processes of ``parked.py``: a worker whose cache is much smaller than the number of runs, and approvers.

python -m benchmarks.parking worker ADDRESS TASK_QUEUE STORE_URL LEDGER CACHE
python -m benchmarks.parking approver ADDRESS TASK_QUEUE STORE_URL NAME EDITS

With ``floor-`` before the first argument, the same in plain Temporal: a workflow that asks, waits for an update, and
acts, and is found by a search attribute while it waits. It has no conversation, store, audit trail or events.

All print ``ready``. A worker then says for every line of input how many KB of memory it has; it ends with its input.
An approver looks into the inbox at the first line, by Temporal and by the store, and says how many seconds each took;
at the second it decides on all that was there, and says what came of it as one line of JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from temporalio import activity, workflow
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowUpdateFailedError
from temporalio.common import SearchAttributeKey
from temporalio.worker import Worker

from benchmarks.floor import OPTIONS, WORKER_SETTINGS
from benchmarks.output import Progress, keep_clean
from perdure import Agent, Client, PerdurePlugin, tool
from perdure.client.inbox import PendingCall
from perdure.client.pages import MAX_PAGE
from perdure.errors import ApprovalDecidedError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.types.interface import PENDING_ATTRIBUTE

AGENT = "desk"
AMOUNT = 5
"""What the model asks for."""
TALK = "talk"
"""A message that is answered at once."""
_AT_ONCE = 10
"""Decisions of one approver that are under way."""
FLOOR = "FloorDesk"
"""Workflow of the floor."""
_PENDING = SearchAttributeKey.for_int(PENDING_ATTRIBUTE)

T = TypeVar("T")


class Book:
    """A file with one line of JSON for each thing that was done."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def append(self, entry: Any) -> None:
        """Written at once."""
        self._file.write(json.dumps(entry) + "\n")


async def worker(address: str, task_queue: str, store_url: str, ledger: str, cache: str) -> None:
    """Serve until standard input ends. Every call of the tool is a line of the ledger."""

    @tool(needs_approval=True)
    async def refund(order: str, amount: float) -> str:
        """Refund an order."""
        book.append([order, amount])
        return f"refunded {amount:g} of {order}"

    def reply(request: ModelRequest) -> Any:
        provider.requests.clear()  # else the worker's memory grows with each of them
        said = request.messages[-1]
        return "Done." if said.role == "tool" or said.text == TALK else call("refund", order=said.text, amount=AMOUNT)

    book, provider = Book(Path(ledger)), ScriptedProvider(reply)
    client = await TemporalClient.connect(address)
    agent = Agent(AGENT, provider, tools=[refund])
    plugin = PerdurePlugin([agent], store_url=store_url)
    async with Worker(client, task_queue=task_queue, plugins=[plugin], max_cached_workflows=int(cache)):
        print("ready", flush=True)
        await asyncio.to_thread(_say_memory)


def _say_memory() -> None:
    for _ in sys.stdin:
        gc.collect()
        lines = Path("/proc/self/status").read_text().splitlines()
        print(next(line.split()[1] for line in lines if line.startswith("VmRSS")), flush=True)


async def approver(address: str, task_queue: str, store_url: str, name: str, edits: str) -> None:
    """Approve all that waits; with ``edits`` N every Nth with another amount. By the store, an approver who comes when
    the run has ended hears who decided."""
    client = Client(await TemporalClient.connect(address), store_url=store_url, task_queue=task_queue, actor=name)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    looked = [time.perf_counter()]
    waiting = await client.approvals(agent=AGENT)
    looked.append(time.perf_counter())
    await client.list_waits(agent=AGENT)
    looked.append(time.perf_counter())
    in_store = await _read_pages(client)
    looked.append(time.perf_counter())
    assert {one.run_id for one in waiting} <= in_store, "what waits has a row"
    print(json.dumps([later - earlier for earlier, later in pairwise(looked)]), flush=True)
    await asyncio.to_thread(sys.stdin.readline)

    async def decide(one: PendingCall) -> tuple[str, dict[str, Any]]:
        assert one.arguments is not None, "they are short"
        order = one.arguments["order"]
        changed = {**one.arguments, "amount": 1} if _is_edited(order, edits) else None
        try:
            await one.approve(arguments=changed)
        except ApprovalDecidedError as error:
            return order, {"lost": error.message}
        return order, {"won": (changed or one.arguments)["amount"]}

    await _decide_all(name, waiting, decide)


def _is_edited(order: str, edits: str) -> bool:
    return int(edits) > 0 and int(order) % int(edits) == 0


async def _decide_all(
    name: str, waiting: Sequence[T], decide: Callable[[T], Awaitable[tuple[str, dict[str, Any]]]]
) -> None:
    limit = asyncio.Semaphore(_AT_ONCE)
    progress = Progress(f"{name} decides", len(waiting))

    async def decide_one(one: T) -> tuple[str, dict[str, Any]]:
        async with limit:
            try:
                return await decide(one)
            finally:
                progress.step()

    print(json.dumps(dict(await asyncio.gather(*map(decide_one, waiting)))), flush=True)


async def _read_pages(client: Client) -> set[str]:
    """The runs that wait, by the store's table, a page after the other as a console shows it."""
    page = await client.list_waits(agent=AGENT, limit=MAX_PAGE)
    runs = {wait.run_id for wait in page.waits}
    while page.cursor is not None:
        page = await client.list_waits(agent=AGENT, limit=MAX_PAGE, cursor=page.cursor)
        runs |= {wait.run_id for wait in page.waits}
    return runs


# ---
# The floor.


@workflow.defn(name=FLOOR, sandboxed=False)
class FloorDesk:
    """Asks, waits for a decision, acts, and asks again."""

    def __init__(self) -> None:
        self._decided: dict[str, Any] | None = None

    @workflow.run
    async def run(self, order: str) -> str:
        """``order``: what the model is asked for."""
        await workflow.execute_activity("ask", order, **OPTIONS)
        workflow.upsert_search_attributes([_PENDING.value_set(1)])
        await workflow.wait_condition(lambda: self._decided is not None)
        workflow.upsert_search_attributes([_PENDING.value_set(0)])
        done = await workflow.execute_activity("refund", self._decided, **OPTIONS)
        return str(await workflow.execute_activity("ask", done, **OPTIONS))

    @workflow.update
    def decide(self, decision: dict[str, Any]) -> None:
        """``{"order", "amount", "by"}``."""
        self._decided = decision

    @decide.validator
    def _check(self, decision: dict[str, Any]) -> None:
        if self._decided is not None:
            raise ValueError(f"{decision['order']} was already approved by {self._decided['by']}")


async def floor_worker(address: str, task_queue: str, _: str, ledger: str, cache: str) -> None:
    """As ``worker``."""
    book = Book(Path(ledger))

    @activity.defn
    async def ask(_: str) -> dict[str, Any]:
        return {"text": "x" * 500}

    @activity.defn
    async def refund(decision: dict[str, Any]) -> str:
        book.append([decision["order"], decision["amount"]])
        return f"refunded {decision['amount']:g} of {decision['order']}"

    client = await TemporalClient.connect(address)
    settings = {**WORKER_SETTINGS, "max_cached_workflows": int(cache)}
    async with Worker(client, task_queue=task_queue, workflows=[FloorDesk], activities=[ask, refund], **settings):
        print("ready", flush=True)
        await asyncio.to_thread(_say_memory)


async def floor_approver(address: str, task_queue: str, _: str, name: str, edits: str) -> None:
    """As ``approver``; it takes the arguments for known."""
    client = await TemporalClient.connect(address)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    began = time.perf_counter()
    query = f"{PENDING_ATTRIBUTE} > 0 AND TaskQueue = '{task_queue}' AND ExecutionStatus = 'Running'"
    waiting = [execution.id async for execution in client.list_workflows(query)]
    print(json.dumps([time.perf_counter() - began]), flush=True)
    await asyncio.to_thread(sys.stdin.readline)

    async def decide(id: str) -> tuple[str, dict[str, Any]]:
        order = id.rpartition(".")[2]
        decision = {"order": order, "amount": 1 if _is_edited(order, edits) else AMOUNT, "by": name}
        try:
            await client.get_workflow_handle(id).execute_update("decide", decision)
        except WorkflowUpdateFailedError as error:
            return order, {"lost": str(error.cause)}
        return order, {"won": decision["amount"]}

    await _decide_all(name, waiting, decide)


_ROLES = {
    "worker": worker,
    "approver": approver,
    "floor-worker": floor_worker,
    "floor-approver": floor_approver,
}

if __name__ == "__main__":
    keep_clean()
    asyncio.run(_ROLES[sys.argv[1]](*sys.argv[2:]))
    sys.stdout.flush()
    os._exit(0)  # a Temporal client at the interpreter's exit aborts now and then (FACTS.md)
